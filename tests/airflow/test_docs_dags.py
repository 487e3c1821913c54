"""The DAGs and operators that the documentation shows are taken by Airflow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.runs.pages import Block
from tests.unit.project.test_docs_blocks import DAGS

pytest.importorskip("airflow")


@pytest.mark.parametrize("block", DAGS, ids=str)
def test_a_dag_of_the_documentation_is_taken(block: Block) -> None:
    from airflow.sdk import DAG, task

    import airflow_elastic.operators
    import airflow_elastic.sensors

    names: dict[str, Any] = {
        "task": task,
        **vars(airflow_elastic.operators),
        **vars(airflow_elastic.sensors),
        "__name__": "documentation",
    }
    with DAG("around", schedule=None) as around:
        exec(compile(block.text, str(block), "exec"), names)
        if block.text.startswith("@task."):
            names["train"](3)
    made = [one for one in names.values() if isinstance(one, DAG)] or [around]
    assert any(dag.tasks for dag in made) or "with DAG(" in block.text
