"""Conditions of a run that sensors, triggers and operators wait for. Pure.

- `look`: what they are judged by. `reached`: a state, a step, a checkpoint. `checkpoint`: its age and metrics.
- `metric_rule`: `val_loss < 0.2`. `promotion_rule`: `accuracy > promoted`.
- `at_size`: workers that train. `unhealthy`: signs that a run is not well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from airflow_elastic.core.conditions.at_size import AtSize
from airflow_elastic.core.conditions.checkpoint import HasCheckpoint
from airflow_elastic.core.conditions.look import Look, OutOfReach
from airflow_elastic.core.conditions.reached import Reached
from airflow_elastic.core.conditions.unhealthy import Unhealthy
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.errors import Problem, SpecError
from airflow_elastic.spec.validation import choice

__all__ = [
    "AtSize",
    "Condition",
    "HasCheckpoint",
    "Look",
    "OutOfReach",
    "Reached",
    "Unhealthy",
    "from_plain",
    "to_plain",
]


class Condition(Protocol):
    """What may hold for a run.

    Attributes:
        kind: its name in plain JSON.
        reads: what a look must have beside the status document: `checkpoints`, `throughput`.
    """

    kind: ClassVar[str]
    reads: ClassVar[frozenset[str]]

    def judge(self, look: Look, before: Look | None = None) -> dict[str, Any] | None:
        """What a sensor returns if it holds; None if it does not hold yet.

        Args:
            look: at the run, now.
            before: the look before that one, if there was one.

        Raises:
            OutOfReach: the run has ended, and it will never hold.
        """


_KINDS: Mapping[str, Any] = {one.kind: one for one in (Reached, HasCheckpoint, AtSize, Unhealthy)}


def to_plain(condition: Condition) -> dict[str, Any]:
    """The condition as plain JSON, for a trigger."""
    return {"kind": condition.kind, **encode(condition)}


def from_plain(plain: Mapping[str, Any]) -> Condition:
    """The condition again. Raises SpecError for another kind, or a value that is not allowed."""
    given = dict(plain)
    kind = given.pop("kind", None)
    if kind not in _KINDS:
        raise SpecError(Problem("kind", kind, choice(_KINDS).allowed))
    condition: Condition = _KINDS[kind](**given)
    return condition
