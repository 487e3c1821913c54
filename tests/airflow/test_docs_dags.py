"""The DAGs and operators that the documentation shows are taken by Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.runs.pages import Block
from tests.unit.project.test_docs_blocks import DAGS

pytest.importorskip("airflow")


@pytest.mark.parametrize("block", DAGS, ids=str)
def test_a_dag_of_the_documentation_is_taken(block: Block, tmp_path: Path) -> None:
    from airflow.sdk import DAG, Asset, AssetWatcher, task

    from airflow_elastic import operators, sensors, triggers

    names: dict[str, Any] = {
        "DAG": DAG,
        "Asset": Asset,
        "AssetWatcher": AssetWatcher,
        "task": task,
        **{name: getattr(room, name) for room in (operators, sensors, triggers) for name in room.__all__},
        "__name__": "documentation",
    }
    file = tmp_path / "documentation.py"  # a function that is a script is read from its file
    file.write_text(block.text)
    with DAG("around", schedule=None) as around:
        exec(compile(block.text, str(file), "exec"), names)
        if block.text.startswith("@task."):
            made_here = next(names[name] for name in ("train", "evaluate") if name in names)
            made_here(3)
    made = [one for one in names.values() if isinstance(one, DAG)] or [around]
    assert any(dag.tasks for dag in made) or "with DAG(" in block.text
