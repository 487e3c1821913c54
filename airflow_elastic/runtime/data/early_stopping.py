"""Whether a training ends early. Its loops then yield no more data, on all ranks after the same step."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.training.early_stop import EarlyStop, Watch

log = logging.getLogger(__name__)


class EarlyStopping:
    """Watches the metric on one rank. The values of rank 0 count, so all ranks decide the same.

    Args:
        rule: when the training ends.
        ranks: this rank among the others.

    Attributes:
        rule: as it was given.
        watch: the reports of the current training.
        told: the newest watch with a report, of the current training or of one before.
    """

    def __init__(self, rule: EarlyStop, ranks: Collectives) -> None:
        self.rule, self._ranks = rule, ranks
        self.watch = self.told = Watch(rule.metric)
        self._new: tuple[int, float, bool] | None = None
        self._anew = False
        self._in_steps = (
            True  # whether the metric may come with any step; if not, steps need no communication
        )

    @property
    def over(self) -> bool:
        """Whether the current training ends."""
        return self.watch.over

    def begin(self) -> None:
        """Another training begins."""
        self.watch, self._new, self._anew = Watch(self.rule.metric), None, False
        self._in_steps = True

    def note(self, step: int, metrics: Mapping[str, Any], *, measured: bool = False) -> None:
        """Note the metrics of a step.

        A script may repeat a metric with each step until it measures it again. So a value that comes with a step only
        counts if it is another one than before, and finite.

        Args:
            step: the step.
            metrics: the newest ones.
            measured: whether they were measured now: each of them counts.
        """
        value = metrics.get(self.rule.metric)
        if value is None:
            return
        number, measured = float(value), measured or self._anew
        before = self._new[1] if self._new else self.watch.last
        if measured or (math.isfinite(number) and number != before):
            self._new = step, number, measured

    def agree(self, *, measured: bool = False) -> bool:
        """Count the report that rank 0 has noted, if there is one. All ranks call this together.

        Once the metric was measured outside of a step, only such reports count: other steps need no communication.

        Args:
            measured: whether something was measured now, outside of a step.

        Returns:
            Whether it was measured, and is the best one so far.
        """
        if not (self._in_steps or self._anew or measured):
            self._new = None
            return False
        report = self._from_first(self._new)
        self._new, self._anew = None, False
        if report is None:
            return False
        self._in_steps = self._in_steps and not report[2]
        step, value, was_measured = report
        before = self.watch
        self.watch = self.told = self.rule.after(before, value, step)
        if self.over and not before.over and self._ranks.rank == 0:
            log.info("the training ends early: %s", self.watch.words)
        return was_measured and self.watch.since == 0

    def would_end(self, metrics: Mapping[str, Any]) -> bool:
        """Whether the training ends if these metrics, just measured, are reported with the next step.

        There the value counts, even if it is the same as before. All ranks call this together.
        """
        value = metrics.get(self.rule.metric)
        report = self._from_first(None if value is None else (0, float(value), True))
        if report is None:
            return self.over
        self._anew = True
        return self.rule.after(self.watch, report[1], 0).over

    def _from_first(self, report: tuple[int, float, bool] | None) -> tuple[int, float, bool] | None:
        """The report of rank 0."""
        step, value, measured = report or (0, 0.0, False)
        there, finite = report is not None, math.isfinite(value)
        mine = (float(there), float(step), value if finite else 0.0, float(measured), float(finite))
        if self._ranks.rank:  # the largest is that of rank 0
            mine = (-math.inf, -math.inf, -math.inf, -math.inf, -math.inf)
        is_there, at, number, was_measured, is_finite = self._ranks.largest(*mine)()
        if not is_there:
            return None
        return int(at), number if is_finite else math.nan, bool(was_measured)

    def state_dict(self) -> dict[str, Any]:
        """The reports so far, for a checkpoint."""
        plain: dict[str, Any] = encode(self.watch)
        return plain

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the reports from a checkpoint."""
        self.watch = self.told = decode(Watch, state)
