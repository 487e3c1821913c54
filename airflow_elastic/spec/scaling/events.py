"""What a scaling policy decided, as the journal keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_elastic.spec.scaling.observation import Decision, Observation


@dataclass(frozen=True, slots=True)
class ScaleDecided:
    """The policy has decided something else than before: to change the number of workers, or why not to.

    `seen` is all that the decision depends on, so it can be made again from the journal. With `decision.acts` it is a
    scale request, too.
    """

    at: float
    decision: Decision
    seen: Observation
