"""What starts, saves and scale steps cost, the same for all policies."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_elastic.spec.validation import Checks, finite_positive


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds.

    Attributes:
        start: from room for a job's workers to its first step: images, imports, restore.
        rejoin: the same for ranks that start again in their job, after a crash.
        scale: for which a scale step in place stops all workers.
        leave: for which workers save before they leave, where a step needs a new job.
        save: for which a save stops the training.
        save_every: of training between two saves.
    """

    start: float = 60.0
    rejoin: float = 20.0
    scale: float = 15.0
    leave: float = 10.0
    save: float = 1.0
    save_every: float = 600.0

    def __post_init__(self) -> None:
        with Checks() as check:
            for name in ("start", "rejoin", "scale", "leave", "save", "save_every"):
                check(name, getattr(self, name), finite_positive)

    @property
    def training(self) -> float:
        """The share of the time between starts and ends that is not spent on saves."""
        return self.save_every / (self.save_every + self.save)
