"""Fine-tunes a vision transformer of Hugging Face from a promoted base. Nothing is downloaded.

The base learns eight of the ten digits, and is promoted. Fine-tuning starts from its weights, and learns all ten from
few images. The result is promoted at a URI of its own, if it is better than the base. Its record names the base.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param
from digits.tasks import HOME, prepare

from airflow_elastic.operators import ElasticEvaluateOperator, ElasticPromoteOperator, ElasticTrainOperator

BASE, TUNED = f"{HOME}/base", f"{HOME}/tuned"
BASE_ACCURACY = "{{ ti.xcom_pull('evaluate_base', key='metrics')['accuracy'] }}"


def train(task_id: str, data: Any, *more: str, **options: Any) -> ElasticTrainOperator:
    return ElasticTrainOperator(
        task_id=task_id,
        command=["digits/train_vit.py", "--data", data, *more],
        workers=2,
        min_workers=1,
        max_workers=4,
        checkpoint_every_seconds=60,
        active_deadline=timedelta(hours=1),
        **options,
    )


with DAG(
    "digits_finetune",
    schedule=None,
    params={
        "base_epochs": Param(10, type="integer", minimum=1),
        "epochs": Param(30, type="integer", minimum=1),
        "images": Param(200, type="integer", minimum=1, description="fine-tune with so many"),
    },
    doc_md=__doc__,
    tags=["airflow-elastic"],
) as dag:
    data = prepare()
    base = train("base", data, "--digits", "8", "--epochs", "{{ params.base_epochs }}")
    promote_base = ElasticPromoteOperator(
        task_id="promote_base", model_uri=BASE, source=base.output["run_uri"], why="knows eight digits"
    )
    tuned = train(
        "finetune",
        data,
        *("--images", "{{ params.images }}"),
        *("--epochs", "{{ params.epochs }}"),
        *("--lr", "0.001"),
        start_from=BASE,
        early_stop="max eval_accuracy 5",  # epochs without a better one
    )
    promote_base >> tuned
    measure = ["digits/evaluate_vit.py", "--data", data]
    before = ElasticEvaluateOperator(task_id="evaluate_base", command=measure, source=BASE)
    after = ElasticEvaluateOperator(task_id="evaluate", command=measure, source=tuned.output["run_uri"])
    promote_base >> before
    promote = ElasticPromoteOperator(
        task_id="promote",
        model_uri=TUNED,
        source=tuned.output["run_uri"],
        metrics=after.output["metrics"],
        rule=f"accuracy > {BASE_ACCURACY} and accuracy > promoted",
        data={"uri": data, "images": "{{ params.images }}"},
    )
    before >> promote
