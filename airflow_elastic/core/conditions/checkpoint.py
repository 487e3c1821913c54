"""A checkpoint of a certain step, age or metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_elastic.core.conditions.metric_rule import parse_rule
from airflow_elastic.spec import layout
from airflow_elastic.spec.validation import Checks, finite_positive, positive_int

if TYPE_CHECKING:
    from airflow_elastic.core.conditions.look import Look
    from airflow_elastic.spec.checkpoints.manifest import Manifest


@dataclass(frozen=True, slots=True)
class HasCheckpoint:
    """A checkpoint for which all that is set holds; with nothing set, any checkpoint.

    Attributes:
        step: it is of this step or a later one.
        max_age: it was saved at most so many seconds ago.
        metric: a rule over its metrics, such as `val_loss < 0.2` (see `metric_rule`).

    Raises:
        SpecError: a value is not allowed.
    """

    kind: ClassVar[str] = "checkpoint"
    reads: ClassVar[frozenset[str]] = frozenset({"checkpoints"})

    step: int | None = None
    max_age: float | None = None
    metric: str | None = None

    def __post_init__(self) -> None:
        with Checks() as check:
            if self.step is not None:
                check("step", self.step, positive_int)
            if self.max_age is not None:
                check("max_age", self.max_age, finite_positive)
        if self.metric is not None:
            parse_rule(self.metric)

    def __str__(self) -> str:
        parts = ["a checkpoint"]
        if self.step is not None:
            parts.append(f"of step {self.step} or later")
        if self.max_age is not None:
            parts.append(f"saved in the last {self.max_age:g} s")
        if self.metric is not None:
            parts.append(f"with {parse_rule(self.metric)}")
        return " ".join(parts)

    def judge(self, look: Look, before: Look | None = None) -> dict[str, Any] | None:
        """The newest such checkpoint, as the sensor returns it; None while there is none. Raises OutOfReach."""
        for manifest in reversed(look.checkpoints):
            if self._fits(manifest, look.at):
                return {
                    **look.summary(),
                    "checkpoint": manifest.step,
                    "manifest": f"{look.uri}/{layout.manifest(manifest.step)}",
                    "data": f"{look.uri}/{manifest.data}",
                    "metrics": dict(manifest.metrics),
                    "at": manifest.created_at,
                }
        if look.outcome is not None:
            raise look.out_of_reach(str(self))
        return None

    def _fits(self, manifest: Manifest, now: float) -> bool:
        return (
            (self.step is None or manifest.step >= self.step)
            and (self.max_age is None or now - manifest.created_at <= self.max_age)
            and (self.metric is None or parse_rule(self.metric).holds(manifest.metrics))
        )
