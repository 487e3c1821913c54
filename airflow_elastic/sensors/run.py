"""ElasticRunSensor: waits until a run has reached a state, a step or a checkpoint."""

from __future__ import annotations

from typing import Any

from airflow_elastic.core.conditions import Condition, Reached
from airflow_elastic.sensors.base import RunConditionSensor


class ElasticRunSensor(RunConditionSensor):
    """Waits until a run has reached a state, a step or a checkpoint.

        ElasticRunSensor(task_id="half_way", run_uri="s3://training/mnist", step=500)

    The run may be driven by another DAG, by a shell or by this DAG, and it need not exist yet. The sensor fails if the
    run ends before the target. Its result is a dict with `run_uri`, `state`, `step` and `checkpoint` (the step of the
    newest checkpoint) of that moment.

    Args:
        run_uri: where the run is stored. (The XCom `run_uri` of a training task names it, once that task has begun.)
        state: `running`, `ended`, `succeeded`, `failed` or `stopped`. Default: `succeeded`, if `step` and `checkpoint`
            are not given.
        step: wait until the run has done this optimizer step.
        checkpoint: wait for a checkpoint of this step or a later one; True means any checkpoint.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
        deferrable: True waits in the triggerer; False waits in a worker, as `mode` says. Default: True.
        poke_interval: the longest time between two looks at the run, seconds. Default: 30.

    Raises:
        SpecError: at parse time, if an argument has a value that is not allowed.
    """

    def __init__(
        self,
        *,
        state: str | None = None,
        step: int | None = None,
        checkpoint: int | bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.state = "succeeded" if (state, step, checkpoint) == (None, None, None) else state
        self.step = step
        self.checkpoint = checkpoint
        self.condition()

    def condition(self) -> Condition:
        """The state, step or checkpoint."""
        return Reached(self.state, self.step, self.checkpoint)
