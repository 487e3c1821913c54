"""Objects with a different state on each rank: torchdata's StatefulDataLoader knows which samples its rank has read."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec.errors import InvalidInput


def per_rank_if_needed(other: Any, ranks: Collectives) -> Any:
    """The same object, or a `PerRankState` around it if its state differs from rank to rank."""
    torchdata = sys.modules.get("torchdata.stateful_dataloader")  # imported by scripts that use it
    if torchdata is not None and isinstance(other, torchdata.StatefulDataLoader):
        return PerRankState(other, ranks)
    return other


class PerRankState:
    """Saves an object's states of all ranks, and restores each on its rank.

    Args:
        other: this rank's object.
        ranks: this rank among the others.
    """

    def __init__(self, other: Any, ranks: Collectives) -> None:
        self._other, self._ranks = other, ranks

    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks. All ranks call this together."""
        return {"ranks": self._ranks.gather(self._other.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore this rank's state.

        Raises:
            InvalidInput: it was saved with another number of ranks.
        """
        states = state["ranks"]
        if len(states) != self._ranks.world_size:
            raise InvalidInput(
                f"the {type(self._other).__name__} was saved by {len(states)} ranks, and there are "
                f"{self._ranks.world_size}: the samples of each rank cannot be divided again. Go on with "
                f"{len(states)}: a run without workers.min and workers.max keeps its number of workers. Or use "
                "run.loader, which goes on with any number"
            )
        self._other.load_state_dict(states[self._ranks.rank])
