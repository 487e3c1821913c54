"""Models of the size that a bench asks for, and the states that their optimizers have after a step."""

from __future__ import annotations

import torch

from airflow_elastic.runtime.checkpoint.save.save import Stateful
from tests.bench.support.figures import count

TENSORS = count("TENSORS", 36)  # of the model; AdamW has two more for each


def layers(megabytes: int) -> torch.nn.Sequential:
    """A model that is so large with what AdamW keeps of it."""
    side = max(8, int((megabytes * 1e6 / 4 / 3 / TENSORS) ** 0.5))
    return torch.nn.Sequential(*(torch.nn.Linear(side, side, bias=False) for _ in range(TENSORS)))


def stepped(model: torch.nn.Module) -> Stateful:
    """It and an optimizer that has made a step."""
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return Stateful(model, (optimizer,), {})
