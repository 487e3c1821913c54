"""What Lightning's trainer counts: steps, batches and epochs, in all calls of its `fit`."""

from __future__ import annotations

import math
from typing import Any


def steps_of_fit(trainer: Any, before: int) -> int:
    """Optimizer steps that one call of `fit` is meant to have; 0 where nobody knows.

    A trainer that is trained again goes on counting: its limits, and its own estimate, are of all calls together.

    Args:
        trainer: whose call begins, with its data.
        before: epochs of its earlier calls.
    """
    limits = []
    if trainer.max_epochs != -1:
        an_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        limits.append(an_epoch * (trainer.max_epochs - before))
    if trainer.max_steps != -1:
        limits.append(trainer.max_steps - trainer.global_step)
    return max(0, min(limits, default=0))


def stand(progress: Any, number: int) -> None:
    """Have a counter of the trainer's say that so much is behind it."""
    for tracker in (progress.total, progress.current):
        tracker.reset()
        add(tracker, number)


def add(tracker: Any, number: int) -> None:
    """Have it count so many more."""
    for stage, count in vars(tracker).items():
        setattr(tracker, stage, count + number)
