"""Trains with data on the machine's own disk. The data is there only as long as the training is.

`unpack` is the setup of `train`. The two teardowns run if training succeeds, fails, or is marked failed by a person.
The first one waits for the end of the run, which saves before it ends, and may still read. The second one removes the
data. On a cluster the setup may make a volume or a namespace instead.
"""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta

from airflow.sdk import DAG, Param, setup, teardown

from airflow_elastic.operators import ElasticStopOperator, ElasticTrainOperator

SCRATCH = f"{tempfile.gettempdir()}/digits_scratch/{{{{ run_id }}}}"


@setup
def unpack(folder: str) -> str:
    """Write the data set into this folder, and return its path."""
    from digits import data

    from airflow_elastic.adapters.storage.open import open_store

    return data.write(open_store(folder))


@teardown
def remove(folder: str) -> None:
    """Remove this folder, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)


with DAG(
    "digits_scratch",
    schedule=None,
    params={
        "epochs": Param(30, type="integer", minimum=1),
        "lr": Param(0.001, type="number"),
        "step_seconds": Param(0.06, type="number", minimum=0),
    },
    doc_md=__doc__,
    tags=["airflow-elastic"],
) as dag:
    data = unpack(SCRATCH)
    train = ElasticTrainOperator(
        task_id="train",
        command=[
            "digits/train_digits.py",
            *("--data", data),
            *("--epochs", "{{ params.epochs }}"),
            *("--lr", "{{ params.lr }}"),
            *("--step-seconds", "{{ params.step_seconds }}"),
        ],
        active_deadline=timedelta(hours=1),
    )
    end = ElasticStopOperator(
        task_id="end",
        run_uri="{{ ti.xcom_pull('train', key='run_uri') }}",
        optional=True,  # training may not have begun
    )
    removed = remove(SCRATCH).as_teardown(setups=data.operator)
    train >> end.as_teardown(setups=data.operator) >> removed
