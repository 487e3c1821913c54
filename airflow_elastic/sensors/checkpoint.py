"""ElasticCheckpointSensor: waits for a checkpoint of a certain step, age or metric."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow_elastic.core.conditions import Condition, HasCheckpoint
from airflow_elastic.operators.task.on_run import seconds_of
from airflow_elastic.operators.task.parameters import is_templated
from airflow_elastic.sensors.base import RunConditionSensor


class ElasticCheckpointSensor(RunConditionSensor):
    """Waits for a committed checkpoint of a run, for which all that is given holds.

        ElasticCheckpointSensor(task_id="good_enough", run_uri="s3://training/mnist", metric="val_loss < 0.2")

    The run may be driven by another DAG, by a shell or by this DAG, and it need not exist yet. The sensor fails if the
    run ends without such a checkpoint; with `soft_fail=True` it is skipped. Its result is a dict of the newest one.
    `checkpoint` is its step, `manifest` and `data` are its URIs. `at` is in epoch seconds. It also has `metrics`, and
    `run_uri`, `state` and `step` of the run.

    Args:
        run_uri: where the run is stored. (The XCom `run_uri` of a training task names it, once that task has begun.)
        step: it is of this step or a later one.
        max_age: it was saved in the last so many seconds (or a timedelta).
        metric: a rule over the numbers that the script gave with the save. It has a metric, one of `<`, `<=`, `>`,
            `>=`, `==`, and a number; several are joined by `and`. It is not run as code. A metric that is missing or
            NaN fulfils nothing.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
        deferrable: True waits in the triggerer; False waits in a worker, as `mode` says. Default: True.
        poke_interval: the longest time between two looks at the run, seconds. Default: 30.

    Raises:
        SpecError: at parse time, if an argument has a value that is not allowed.
    """

    template_fields: Sequence[str] = (*RunConditionSensor.template_fields, "metric")

    def __init__(
        self,
        *,
        step: int | None = None,
        max_age: float | timedelta | None = None,
        metric: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.step = step
        self.max_age = seconds_of("max_age", max_age)
        self.metric = metric
        if not is_templated(metric):
            self.condition()

    def condition(self) -> Condition:
        """The checkpoint."""
        return HasCheckpoint(self.step, self.max_age, self.metric)
