"""Counters of Lightning's trainer: steps, batches and epochs of all calls of its `fit`."""

from __future__ import annotations

import math
from typing import Any


def steps_of_fit(trainer: Any, before: int) -> int:
    """Optimizer steps of one call of `fit`; 0 if the number is not known.

    The trainer's counters go on in the next call of `fit`: its limits, and its estimate, are for all calls together.

    Args:
        trainer: the trainer, with its data, at the start of the call.
        before: epochs of earlier calls.
    """
    limits = []
    if trainer.max_epochs != -1:
        an_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        limits.append(an_epoch * (trainer.max_epochs - before))
    if trainer.max_steps != -1:
        limits.append(trainer.max_steps - trainer.global_step)
    return max(0, min(limits, default=0))


def stand(progress: Any, number: int) -> None:
    """Set a counter of the trainer to a number."""
    for tracker in (progress.total, progress.current):
        tracker.reset()
        add(tracker, number)


def add(tracker: Any, number: int) -> None:
    """Add a number to a counter of the trainer."""
    for stage, count in vars(tracker).items():
        setattr(tracker, stage, count + number)
