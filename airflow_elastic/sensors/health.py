"""ElasticHealthSensor: waits for a sign that a run is not well."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_elastic.core.conditions import Condition, Unhealthy
from airflow_elastic.operators.task.on_run import seconds_of
from airflow_elastic.sensors.base import RunConditionSensor


class ElasticHealthSensor(RunConditionSensor):
    """Succeeds as soon as a run is not well, for an alarm or a branch; it is skipped if the run ends before.

        ElasticHealthSensor(task_id="slow", run_uri="s3://training/mnist", straggler=True, no_progress=300)

    Give one sign or more; the first that holds in two looks in a row ends the wait. The result is a dict with `alarms`,
    each with `alarm` (the argument without `_below`) and `text`, and `run_uri`, `state`, `step` and `checkpoint`.

    Args:
        run_uri: where the run is stored. (The XCom `run_uri` of a training task names it, once that task has begun.)
        straggler: True: a rank holds all others up.
        no_progress: no rank has done a step for so long, also while workers wait or start; seconds or a timedelta.
        restarts: the run has used so many restarts.
        goodput_below: the share of the wall time in steps that count is lower than this, 0 to 1.
        throughput_below: samples/s are lower than this share of their own median so far, 0 to 1.
        unsaved: the newest checkpoint is older than this; seconds or a timedelta.
        after: `goodput_below` and `throughput_below` count from so long after the first submission; seconds or a
            timedelta. Default: 300.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
        deferrable: True waits in the triggerer; False waits in a worker, as `mode` says. Default: True.
        poke_interval: the longest time between two looks at the run, seconds. Default: 30.

    Raises:
        SpecError: at parse time, if no sign is given, or an argument has a value that is not allowed.
    """

    skips_at_end = True

    def __init__(
        self,
        *,
        straggler: bool | None = None,
        no_progress: float | timedelta | None = None,
        restarts: int | None = None,
        goodput_below: float | None = None,
        throughput_below: float | None = None,
        unsaved: float | timedelta | None = None,
        after: float | timedelta = 300.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.straggler = straggler
        self.no_progress = seconds_of("no_progress", no_progress)
        self.restarts = restarts
        self.goodput_below, self.throughput_below = goodput_below, throughput_below
        self.unsaved = seconds_of("unsaved", unsaved)
        self.after = seconds_of("after", after)
        self.condition()

    def condition(self) -> Condition:
        """The signs."""
        return Unhealthy(
            self.straggler,
            self.no_progress,
            self.restarts,
            self.goodput_below,
            self.throughput_below,
            self.unsaved,
            self.after,
        )
