"""What a condition is judged by: one look at a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_elastic.spec.errors import ElasticError

if TYPE_CHECKING:
    from airflow_elastic.spec.checkpoints.manifest import Manifest


class OutOfReach(ElasticError):
    """The condition will never hold.

    Attributes:
        ended: whether the reason is that the run has ended.
    """

    ended = True


class Overruled(OutOfReach):
    """The run goes on, and somebody has asked something else of it meanwhile."""

    ended = False


@dataclass(frozen=True, slots=True)
class Look:
    """A run at one moment.

    Attributes:
        document: its status document.
        at: epoch seconds of the look.
        checkpoints: its checkpoints that can be read, oldest first. Empty unless the condition reads them.
        usual_per_second: median throughput of the run so far, samples/s. None if unknown, or not read.
    """

    document: Mapping[str, Any]
    at: float
    checkpoints: tuple[Manifest, ...] = ()
    usual_per_second: float | None = None

    @property
    def uri(self) -> str:
        """Where the run is stored."""
        return str(self.document["run"]["uri"])

    @property
    def outcome(self) -> str | None:
        """`succeeded`, `failed` or `stopped`; None while the run goes on."""
        outcome: str | None = self.document["outcome"]
        return outcome

    @property
    def step(self) -> int:
        """The newest step that any attempt is known to have done."""
        steps: list[int] = [attempt["last_step"] for attempt in self.document["attempts"]]
        return max([int(self.document["step"]), *steps])

    @property
    def saved_step(self) -> int:
        """The step of the newest committed checkpoint; 0 without one."""
        newest = self.document["checkpoints"]["newest"]
        step: int = newest["step"] if newest else 0
        return step

    def summary(self) -> dict[str, Any]:
        """`run_uri`, `state`, `step` and `checkpoint` (step of the newest one, or None)."""
        return {
            "run_uri": self.uri,
            "state": self.document["state"],
            "step": self.step,
            "checkpoint": self.saved_step or None,
        }

    def out_of_reach(self, what: str) -> OutOfReach:
        """The error of a condition that the ended run cannot fulfil any more."""
        ended = f"has {self.outcome}" if self.outcome != "stopped" else "was stopped"
        return OutOfReach(
            f"{self.uri} {ended} at step {self.step} ({self.document['reason']}): it does not reach {what} any more"
        )
