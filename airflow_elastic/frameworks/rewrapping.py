"""DDP exchanges the gradients of what was trained when it was made, and of nothing else. Where callbacks of Lightning's
thaw layers after that, each rank would train these by itself, in silence: so DDP is made anew.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


class Rewrapping:
    """Keeps the DDP of a strategy of Lightning's in step with what is trained.

    Args:
        strategy: that has just wrapped its model.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._exchanged = _trained(strategy.model)

    def renewed(self) -> torch.nn.Module | None:
        """The new DDP, where what is trained has changed, which it has on all ranks alike; None where nothing has."""
        strategy, trained = self._strategy, _trained(self._strategy.model)
        if not isinstance(strategy.model, DistributedDataParallel) or trained == self._exchanged:
            return None
        self._exchanged = trained
        strategy.model = strategy._setup_model(strategy.model.module)
        strategy._register_ddp_hooks()
        model: torch.nn.Module = strategy.model
        return model


def _trained(model: torch.nn.Module) -> set[torch.nn.Parameter]:
    return {one for one in model.parameters() if one.requires_grad}
