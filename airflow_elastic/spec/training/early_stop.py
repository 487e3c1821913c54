"""Early stopping: a training ends when a metric has not improved for some reports. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_elastic.spec.errors import Problem, SpecError
from airflow_elastic.spec.validation import Rule

if TYPE_CHECKING:
    from airflow_elastic.spec.checkpoint import CheckpointPolicy

_FORM = re.compile(
    r"(?:(?P<mode>min|max) )?(?P<metric>\S+) (?P<patience>[1-9]\d{0,8})(?: by (?P<by>\d+(\.\d+)?(e-?\d+)?))?"
)


def _is_valid(value: object) -> bool:
    return isinstance(value, str) and _FORM.fullmatch(value) is not None


#: The text of an early stop.
early_stop_rule = Rule(
    _is_valid,
    "a metric and a number of reports, e.g. `val_loss 5`. With `max` before them, more is better: `max accuracy 5`. "
    "With `by`, only such improvements count: `val_loss 5 by 0.001`",
)


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """When a training ends early.

    Attributes:
        metric: name of the metric.
        patience: it ends after so many reports in a row without an improvement.
        higher: whether more is better.
        by: the least improvement that counts. Default: any.
    """

    metric: str
    patience: int
    higher: bool = False
    by: float = 0.0

    @classmethod
    def parse(cls, text: str) -> EarlyStop:
        """From a text such as `max accuracy 5 by 0.001`. Raises SpecError."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise SpecError(Problem("early_stop", text, early_stop_rule.allowed))
        return cls(found["metric"], int(found["patience"]), found["mode"] == "max", float(found["by"] or 0.0))

    @property
    def best(self) -> str:
        """Which value is the best, e.g. `min val_loss`."""
        return f"{'max' if self.higher else 'min'} {self.metric}"

    def after(self, watch: Watch, value: float, step: int) -> Watch:
        """The watch after another report of the metric. A value that is not finite is no improvement."""
        if math.isfinite(value):
            gain = math.inf
            if watch.best is not None:
                gain = value - watch.best if self.higher else watch.best - value
            if gain > 0 and gain >= self.by:
                return replace(watch, best=value, step=step, since=0, last=value, over=False)
        since = watch.since + 1
        return replace(
            watch,
            since=since,
            last=value if math.isfinite(value) else None,
            over=since >= self.patience,
        )


@dataclass(frozen=True, slots=True)
class Watch:
    """What the reports of the metric have been so far.

    Attributes:
        metric: its name.
        best: its best value; None before the first one.
        step: at which that was reported.
        since: reports since then.
        last: the newest value; None if it was not finite.
        over: whether the training ends.
    """

    metric: str
    best: float | None = None
    step: int | None = None
    since: int = 0
    last: float | None = None
    over: bool = False

    @property
    def words(self) -> str:
        """`val_loss has not improved for 5 reports; best 0.123 at step 340`."""
        best = "" if self.best is None else f"; best {self.best:.6g} at step {self.step}"
        return f"{self.metric} has not improved for {self.since} report{'s' * (self.since != 1)}{best}"


def retention(policy: CheckpointPolicy, early_stop: str | None) -> CheckpointPolicy:
    """Which checkpoints a run keeps: with an early stop also the best one, unless the policy says itself which one."""
    if early_stop is None or policy.keep_best is not None:
        return policy
    return replace(policy, keep_best=EarlyStop.parse(early_stop).best)
