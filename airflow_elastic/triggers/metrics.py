"""Metrics of runs through Airflow's own: StatsD, Datadog or OpenTelemetry, as `[metrics]` of Airflow says.

Only the process that drives a run sends them: the triggerer, or a worker with `deferrable=False`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk.observability import stats

from airflow_elastic.control.observer import Observer
from airflow_elastic.core.goodput import goodput, goodput_share
from airflow_elastic.core.state import Cause, Phase
from airflow_elastic.spec import events as ev

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.errors import ElasticError
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.status import JobStatus, Progress

#: Shortest time in seconds between two reports of the gauges.
GAUGE_SECONDS = 10.0


class Metric(NamedTuple):
    """What a metric is: `gauge`, `counter` or `timer`; its unit; what it says."""

    kind: str
    unit: str
    meaning: str


#: All metrics, by name. Each has the tags `dag_id`, `task_id` and `engine`. Values of tags have `_` for a space.
METRICS: Mapping[str, Metric] = {
    "elastic.run.step": Metric("gauge", "steps", "newest step that all ranks have done"),
    "elastic.run.progress": Metric(
        "gauge", "0 to 1", "share of the steps, if the script says how many there are"
    ),
    "elastic.run.loss": Metric("gauge", "", "newest loss of rank 0, if it is finite"),
    "elastic.run.samples_per_second": Metric("gauge", "samples/s", "recent throughput of all ranks"),
    "elastic.run.step_seconds": Metric("gauge", "s", "mean time of a step of the slowest rank"),
    "elastic.run.world_size": Metric("gauge", "ranks", "ranks at work"),
    "elastic.run.workers": Metric("gauge", "workers", "workers of the current attempt"),
    "elastic.run.target_workers": Metric("gauge", "workers", "workers wanted"),
    "elastic.run.waiting_workers": Metric(
        "gauge", "workers", "workers that wait for a queue, capacity or an image"
    ),
    "elastic.run.stragglers": Metric("gauge", "ranks", "ranks that hold all others up"),
    "elastic.run.goodput": Metric("gauge", "0 to 1", "share of the wall time in steps that count"),
    "elastic.run.checkpoint_age": Metric("gauge", "s", "time since the newest checkpoint was seen"),
    "elastic.run.ended": Metric("counter", "runs", "ended runs, with the tag `outcome`"),
    "elastic.attempt.ended": Metric(
        "counter", "attempts", "ended attempts, with the tags `cause` and `failure`"
    ),
    "elastic.attempt.started": Metric("counter", "attempts", "submitted attempts, with the tag `in_place`"),
    "elastic.checkpoint.committed": Metric("counter", "checkpoints", "committed checkpoints"),
    "elastic.checkpoint.failed": Metric("counter", "saves", "saves that failed, and damaged checkpoints"),
    "elastic.scale.requested": Metric("counter", "requests", "scale steps that were asked for"),
    "elastic.trouble": Metric("counter", "calls", "failed calls of storage or engine"),
    "elastic.recovery": Metric("timer", "ms", "from the end of an attempt to the first step of the next one"),
}


class MetricsObserver(Observer):
    """Sends the metrics of one run. Events of the past are not counted again.

    Args:
        tags: of each metric, `dag_id` and `task_id`; the engine is added.
    """

    def __init__(self, tags: Mapping[str, str]) -> None:
        self._tags = dict(tags)
        self._since = time.time()
        self._sent_at = -math.inf
        self._recovered = 0
        self._waiting = self._stragglers = 0

    @classmethod
    def of(cls, ti: Any) -> MetricsObserver:
        """For the run of a task instance."""
        return cls({"dag_id": ti.dag_id, "task_id": ti.task_id})

    def on_event(self, event: Event, before: RunState | None, state: RunState) -> None:
        self._tags["engine"] = state.spec.engine
        if event.at < self._since:
            return
        match event:
            case ev.RunEnded():
                self._count("elastic.run.ended", outcome=event.outcome)
            case ev.AttemptSubmitted():
                self._count("elastic.attempt.started", in_place=str(state.attempt.home is not None).lower())
            case ev.CheckpointCommitted():
                self._count("elastic.checkpoint.committed")
            case ev.SaveFailed() | ev.CheckpointQuarantined():
                self._count("elastic.checkpoint.failed")
            case ev.ScaleRequested():
                self._count("elastic.scale.requested")
        self._count_end(before, state)

    def _count_end(self, before: RunState | None, state: RunState) -> None:
        number = before.attempt.number if before is not None else 1
        attempt = state.attempts[number - 1]
        if before is None or attempt.cause is None or before.attempt.cause is not None:
            return
        failure = str(attempt.failure.kind) if attempt.failure else "none"
        self._count("elastic.attempt.ended", cause=str(attempt.cause), failure=failure)

    async def on_progress(self, state: RunState, progress: Progress) -> None:
        self._time_recovery(state, progress)

    async def on_look(self, state: RunState, progress: Progress | None) -> None:
        if time.monotonic() - self._sent_at >= GAUGE_SECONDS:
            self._sent_at = time.monotonic()
            for name, value in self._gauges(state, progress, time.time()).items():
                stats.gauge(f"elastic.run.{name}", value, tags=self._tags)

    def on_waiting(self, state: RunState, job: JobStatus) -> None:
        self._waiting = job.wait.workers if job.wait else 0

    def on_lagging(self, state: RunState, progress: Progress, ranks: frozenset[int]) -> None:
        self._stragglers = len(ranks)

    def on_trouble(self, error: ElasticError, times: int, pause: float) -> None:
        self._count("elastic.trouble")

    def _gauges(self, state: RunState, progress: Progress | None, now: float) -> Mapping[str, float]:
        live = state.attempt.phase is Phase.LIVE and not state.ended
        told = progress if live and progress and progress.attempt == state.attempt.number else None
        spent = goodput(state, progress, now)
        saved = state.checkpoint
        step = state.newest_step(told)
        values: dict[str, float | None] = {
            "step": step,
            "progress": step / told.total_steps if told and told.total_steps else None,
            "loss": told.loss if told else None,
            "samples_per_second": told.samples_per_second if told else 0.0,
            "step_seconds": max((rank.step_seconds for rank in told.ranks), default=0.0) if told else None,
            "world_size": told.world_size if told else 0,
            "workers": state.attempt.workers if live else 0,
            "target_workers": state.target,
            "waiting_workers": self._waiting if live else state.attempt.workers * (not state.ended),
            "stragglers": self._stragglers if live else 0,
            "goodput": goodput_share(spent),
            "checkpoint_age": now - saved.at if saved else None,
        }
        return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}

    def _time_recovery(self, state: RunState, progress: Progress) -> None:
        """Once for each attempt after the first one, unless nobody wanted the earlier one to go on."""
        number = state.attempt.number
        first = progress.stretches[0].first_step_at if progress.stretches else None
        if progress.attempt != number or number < 2 or number == self._recovered or first is None:
            return
        self._recovered = number
        before = state.attempts[number - 2]
        unwanted = before.cause in (Cause.FAILURE, Cause.PREEMPTION, Cause.UNATTENDED)
        if unwanted and before.ended_at is not None and first >= self._since:
            stats.timing("elastic.recovery", 1000.0 * max(0.0, first - before.ended_at), tags=self._tags)

    def _count(self, name: str, **tags: str) -> None:
        # Airflow drops tags with other letters where it writes them into names for InfluxDB.
        stats.incr(name, tags=self._tags | {key: value.replace(" ", "_") for key, value in tags.items()})
