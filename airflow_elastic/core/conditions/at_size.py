"""A number of workers that train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_elastic.core.conditions.look import Overruled
from airflow_elastic.core.event_sentences import workers
from airflow_elastic.spec.validation import Checks, positive_int

if TYPE_CHECKING:
    from airflow_elastic.core.conditions.look import Look


@dataclass(frozen=True, slots=True)
class AtSize:
    """The run trains on so many workers: they have done a step together.

    Attributes:
        workers: how many.

    Raises:
        SpecError: the number is not allowed.
    """

    kind: ClassVar[str] = "at_size"
    reads: ClassVar[frozenset[str]] = frozenset()

    workers: int

    def __post_init__(self) -> None:
        with Checks() as check:
            check("workers", self.workers, positive_int)

    def __str__(self) -> str:
        return workers(self.workers)

    def judge(self, look: Look, before: Look | None = None) -> dict[str, Any] | None:
        """The summary of the run, with `workers`, once they train.

        Raises:
            OutOfReach: the run has ended.
            Overruled: somebody has asked for another number meanwhile.
        """
        wanted = look.document["target_workers"]
        stretches = look.document["attempts"][-1]["stretches"]
        trains = (
            bool(stretches)
            and stretches[-1]["workers"] == self.workers
            and stretches[-1].get("first_step_at")
        )
        if trains and wanted == self.workers and look.outcome is None:
            return {**look.summary(), "workers": self.workers}
        if look.outcome is not None:
            raise look.out_of_reach(str(self))
        if before is not None and before.document["target_workers"] == self.workers != wanted:
            raise Overruled(f"{look.uri}: somebody has asked for {wanted} workers instead of {self.workers}")
        return None
