"""Scale steps that are planned beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_elastic.spec.validation import Checks, finite_positive, positive_int, worker_count


@dataclass(frozen=True, slots=True)
class ScaleStep:
    """One planned change of the number of workers, at step `at_step` or `after_seconds` from the start."""

    workers: int
    at_step: int | None = None
    after_seconds: float | None = None

    def __post_init__(self) -> None:
        with Checks() as check:
            check("workers", self.workers, worker_count)
            one = (self.at_step is None) != (self.after_seconds is None)
            exactly = "exactly one of at_step and after_seconds"
            check.that(one, "at_step", self.at_step, exactly, across=True)
            if self.at_step is not None:
                check("at_step", self.at_step, positive_int)
            if self.after_seconds is not None:
                check("after_seconds", self.after_seconds, finite_positive)
