"""Trains the model of digits_quickstart on a Kubernetes cluster, as the chosen kind of job.

It needs an elastic connection with a `run_root` on S3, and two Airflow variables. `digits_home` is an S3 prefix for
data and models. `digits_engine_options` is JSON with the options of the engine. The image must have the folder
`digits`, which is beside this file, in its working folder. docs/how-to/run-the-example-dag.md shows each step.

While `train` is running, switch off a node: training goes on without it from its newest checkpoint.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from digits.tasks import MODEL, MODEL_URI, prepare

from airflow_elastic.operators import ElasticEvaluateOperator, ElasticPromoteOperator, ElasticTrainOperator

KINDS = ["job", "pytorchjob", "trainjob", "elasticjob", "pytorchtrainingjob"]

with DAG(
    "digits_kubernetes",
    schedule=None,
    params={
        "engine": Param("job", enum=KINDS, description="the kind of job"),
        "epochs": Param(30, type="integer", minimum=1),
        "step_seconds": Param(0.06, type="number", minimum=0),
    },
    render_template_as_native_obj=True,  # engine_options are a mapping, not its text
    doc_md=__doc__,
    tags=["airflow-elastic"],
) as dag:
    data = prepare()
    where = {
        "engine": "{{ params.engine }}",
        "engine_options": "{{ var.json.digits_engine_options }}",
        "worker_resources": {"memory": "3Gi"},
    }
    train = ElasticTrainOperator(
        task_id="train",
        command=[
            "digits/train_digits.py",  # in the image
            *("--data", data),
            *("--epochs", "{{ params.epochs }}"),
            *("--step-seconds", "{{ params.step_seconds }}"),
        ],
        workers=2,
        min_workers=1,
        max_workers=4,
        checkpoint_every_steps=30,
        active_deadline=timedelta(hours=1),
        **where,
    )
    evaluate = ElasticEvaluateOperator(
        task_id="evaluate",
        command=["digits/evaluate_digits.py", "--data", data],
        source=train.output["run_uri"],
        **where,
    )
    ElasticPromoteOperator(
        task_id="promote",
        model_uri=MODEL_URI,
        source=train.output["run_uri"],
        metrics=evaluate.output["metrics"],
        rule="accuracy > promoted",
        data={"uri": data},
        outlets=[MODEL],
    )
