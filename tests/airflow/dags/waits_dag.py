"""What tests/airflow/test_waits.py runs: a task of every kind that waits for a run, or changes one or a model.

`elastic_waits` has one of each, and `elastic_waits_mapped` one for each of four places. `elastic_waits_wrong` has
templates that render to nonsense. Nobody drives the runs: the test writes what a controller would write.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException

from airflow_elastic.operators import (
    ElasticCheckpointOperator,
    ElasticEvaluateOperator,
    ElasticPromoteOperator,
    ElasticPruneOperator,
    ElasticRollbackOperator,
    ElasticScaleOperator,
    ElasticStopOperator,
)
from airflow_elastic.sensors import (
    ElasticCapacitySensor,
    ElasticCheckpointSensor,
    ElasticHealthSensor,
    ElasticRunSensor,
)

PLACE = "{{ dag_run.conf['place'] }}"
PLACES = [f"{PLACE}/{name}" for name in ("good", "bad", "success", "failed")]

LOOKS: dict[str, Any] = {"poke_interval": 0.5, "timeout": 600}
ASKS: dict[str, Any] = {"poll_interval": 0.5, "wait_timeout": 600}

#: By task id: the operator, its arguments, and those of them that a place has.
KINDS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "run": (ElasticRunSensor, {"step": 20, **LOOKS}, {"run_uri": "{}/run"}),
    "checkpoint": (ElasticCheckpointSensor, {"metric": "loss < {{ 1 }}", **LOOKS}, {"run_uri": "{}/run"}),
    "health": (ElasticHealthSensor, {"restarts": 1, **LOOKS}, {"run_uri": "{}/run"}),
    "capacity": (
        ElasticCapacitySensor,
        {"workers": "{{ 2 }}", "engine": "elastic_shelf:Shelf", **LOOKS},
        {"engine_options": {"file": "{}/room"}},
    ),
    "scale": (ElasticScaleOperator, {"workers": "{{ 2 }}", **ASKS}, {"run_uri": "{}/run"}),
    "save": (ElasticCheckpointOperator, ASKS, {"run_uri": "{}/run"}),
    "stop": (ElasticStopOperator, ASKS, {"run_uri": "{}/stopped"}),
    "prune": (ElasticPruneOperator, {"keep": 1}, {"run_uri": "{}/saved"}),
    "evaluate": (
        ElasticEvaluateOperator,
        {"source": f"{PLACE}/source", "launcher": "python", "poll_interval": 0.5, "grace_period": 5},
        {"command": ["../scripts/judge.py", "{}/verdict"]},
    ),
    "promote": (
        ElasticPromoteOperator,
        {"source": f"{PLACE}/source", "rule": "loss < 1", "approve": True},
        {"model_uri": "{}/models"},
    ),
    "rollback": (ElasticRollbackOperator, {"why": "{{ 'tested' }}"}, {"model_uri": "{}/older"}),
}

WRONG: dict[str, dict[str, Any]] = {
    "run": {"run_uri": "{{ 'runs' }}/mine"},
    "checkpoint": {"metric": "loss {{ 'low' }}", "run_uri": f"{PLACE}/run"},
    "health": {"run_uri": "{{ 7 }}"},
    "capacity": {"workers": "{{ 'many' }}"},
    "scale": {"workers": "{{ 'many' }}", "run_uri": f"{PLACE}/good/run"},
    "save": {"run_uri": "{{ 'ftp://elsewhere' }}"},
    "stop": {"run_uri": "{{ 'runs' }}/mine"},
    "prune": {"run_uri": "s3:{{ '/' }}"},
    "evaluate": {"command": ["judge.py"], "source": f"{PLACE}/source", "step": "{{ 'last' }}"},
    "promote": {"model_uri": f"{PLACE}/models", "rule": "loss {{ 'low' }}"},
    "rollback": {"model_uri": f"{PLACE}/models", "to": "{{ 'first' }}"},
}


def at(value: Any, place: str) -> Any:
    """The argument with the place in it."""
    if isinstance(value, dict):
        return {name: at(one, place) for name, one in value.items()}
    return [at(one, place) for one in value] if isinstance(value, list) else value.replace("{}", place)


def unlucky(context: Any, result: Any = None) -> None:
    """Fail a try that was done: the second, when the DAG run wants that."""
    if context["dag_run"].conf.get("unlucky") and context["ti"].try_number == 2:
        raise AirflowException("as asked")


AGAIN: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(seconds=1)}

with DAG("elastic_waits", schedule=None):
    for name, (operator, fixed, placed) in KINDS.items():
        operator(task_id=name, **fixed, **at(placed, PLACE), **AGAIN, post_execute=unlucky)

with DAG("elastic_waits_mapped", schedule=None):
    for name, (operator, fixed, placed) in KINDS.items():
        each = {key: [at(value, place) for place in PLACES] for key, value in placed.items()}
        operator.partial(task_id=name, **fixed).expand(**each)

with DAG("elastic_waits_wrong", schedule=None):
    for name, wrong in WRONG.items():
        operator, fixed, placed = KINDS[name]
        operator(task_id=name, **{**fixed, **at(placed, PLACE), **wrong}, **AGAIN)
