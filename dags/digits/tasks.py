"""What these DAGs have in common. torch is imported while tasks run, never while a DAG is parsed."""

from __future__ import annotations

import os

from airflow.sdk import Asset, Variable, task

from airflow_elastic.hooks import ElasticHook

_LOCAL = f"{os.environ.get('AIRFLOW_HOME') or os.path.expanduser('~/airflow')}/digits"

#: The place of data, models and more: the Airflow variable `digits_home`, else AIRFLOW_HOME/digits.
HOME = f"{{{{ var.value.get('digits_home', '{_LOCAL}') }}}}"

#: Where promoted models are kept.
MODEL_URI = f"{HOME}/model"

#: The promoted model. Its events have the record of the promotion; a DAG with `schedule=[MODEL]` runs after each one.
MODEL = Asset("digits_model")


@task
def prepare(month: str | None = None) -> str:
    """Write the data set, or that of a month ("1" to "12"), and return its URI."""
    from digits import data

    home = ElasticHook().open_store(Variable.get("digits_home", default=None) or _LOCAL)
    return data.write(home, None if month is None else int(month))
