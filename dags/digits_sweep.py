"""Tries several learning rates at once. Half-way the worse half is stopped, and the best of the others is promoted.

Each rate is a run of its own. What all may use together is limited by a pool: give it the GPUs that there are.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param, TriggerRule, task
from digits.tasks import HOME, MODEL, MODEL_URI, prepare

from airflow_elastic.operators import (
    ElasticEvaluateOperator,
    ElasticPromoteOperator,
    ElasticStopOperator,
    ElasticTrainOperator,
)
from airflow_elastic.sensors import ElasticCheckpointSensor

RATES = (0.00001, 0.0001, 0.001, 0.01)
RUNS = [f"{HOME}/sweep/{{{{ dag_run.run_after.strftime('%Y%m%dT%H%M%S') }}}}/{rate:g}" for rate in RATES]


@task
def losers(looks: Any) -> list[str]:
    """The runs of the worse half, by what their checkpoints have measured so far."""
    ranked = sorted(looks, key=lambda look: look["metrics"]["accuracy"])
    return [look["run_uri"] for look in ranked[: len(ranked) // 2]]


@task(trigger_rule=TriggerRule.NONE_FAILED)
def best(results: Any) -> str:
    """The run with the best accuracy."""
    return str(max(results, key=lambda result: result["metrics"]["accuracy"])["run_uri"])


with DAG(
    "digits_sweep",
    schedule=None,
    params={
        "epochs": Param(30, type="integer", minimum=4),
        "step_seconds": Param(0.2, type="number", minimum=0),
    },
    doc_md=__doc__,
    tags=["airflow-elastic"],
) as dag:
    data = prepare()
    train = ElasticTrainOperator.partial(
        task_id="train",
        checkpoint_every_steps=25,
        pool="default_pool",
        skip_on_stop=True,
        map_index_template="{{ task.run_uri.rpartition('/')[2] }}",
    ).expand_kwargs(
        [
            {
                "run_uri": run,
                "command": [
                    "digits/train_digits.py",
                    *("--data", f"{HOME}/digits.npz"),
                    *("--epochs", "{{ params.epochs }}"),
                    *("--step-seconds", "{{ params.step_seconds }}"),
                    *("--lr", str(rate)),
                ],
            }
            for run, rate in zip(RUNS, RATES, strict=True)
        ]
    )
    half_way = ElasticCheckpointSensor.partial(task_id="half_way", step=50, poke_interval=5).expand(
        run_uri=RUNS
    )
    data >> [train, half_way]
    ElasticStopOperator.partial(task_id="stop").expand(run_uri=losers(half_way.output))
    winner = best(train.output)
    evaluate = ElasticEvaluateOperator(
        task_id="evaluate", command=["digits/evaluate_digits.py", "--data", data], source=winner
    )
    ElasticPromoteOperator(
        task_id="promote",
        model_uri=MODEL_URI,
        source=winner,
        metrics=evaluate.output["metrics"],
        rule="accuracy > promoted",
        outlets=[MODEL],
    )
