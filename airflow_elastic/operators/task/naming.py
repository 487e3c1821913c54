"""Default name and URI of a run. They come from the task instance and are the same for all its tries."""

from __future__ import annotations

from typing import Any

from airflow_elastic.operators.task.parameters import slug


def run_name(ti: Any) -> str:
    """`<dag>.<task>`, and the map index of a mapped task instance."""
    return "-".join([task_name(ti.dag_id, ti.task_id), *_mapped(ti)])


def task_name(dag_id: str, task_id: str) -> str:
    """`<dag>.<task>`: how the runs of a task are called."""
    return slug(f"{dag_id}.{task_id}")


def default_uri(root: str, ti: Any) -> str:
    """`<root>/<dag>/<task>/<DAG run>`, and the map index of a mapped task instance."""
    return "/".join([root, *map(slug, (ti.dag_id, ti.task_id, ti.run_id, *_mapped(ti)))])


def _mapped(ti: Any) -> list[str]:
    return [str(ti.map_index)] if ti.map_index is not None and ti.map_index >= 0 else []
