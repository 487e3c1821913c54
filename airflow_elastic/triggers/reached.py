"""The trigger of sensors that an earlier version has deferred."""

from __future__ import annotations

from airflow_elastic.core.conditions import Reached, to_plain
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.triggers.condition import ElasticRunConditionTrigger


class ElasticRunReachedTrigger(ElasticRunConditionTrigger):
    """Waits for a state, a step or a checkpoint. Airflow's database still names it for tasks that wait.

    Args:
        run_uri: where the run is or will be stored.
        state: see Reached.
        step: see Reached.
        checkpoint: see Reached.
        elastic_conn_id: see ElasticHook.
        aws_conn_id: see ElasticHook.
        poll_seconds: the longest time between two looks at the run, seconds. Default: 10.
    """

    def __init__(
        self,
        run_uri: str,
        state: str | None = None,
        step: int | None = None,
        checkpoint: int | bool | None = None,
        elastic_conn_id: str = ElasticHook.default_conn_name,
        aws_conn_id: str | None = None,
        poll_seconds: float = 10.0,
    ) -> None:
        condition = to_plain(Reached(state, step, checkpoint))
        super().__init__(run_uri, condition, elastic_conn_id, aws_conn_id, poll_seconds)
