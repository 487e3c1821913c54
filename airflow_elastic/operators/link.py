"""The button on a task instance that opens the page of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


#: The last part of the address of the tab, for which `web.plugin` registers it.
TAB = "training"


class ElasticRunLink(BaseOperatorLink):
    """Opens the tab *Training*. It works as soon as the task has begun, also while it is deferred."""

    name = "Elastic run"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The URL of the page; below `[api] base_url`, if that is set."""
        return page_of(ti_key.dag_id, ti_key.run_id, ti_key.task_id, ti_key.map_index)


def page_of(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    """The address of a run's page: the tab *Training* of its task instance."""
    return f"{task_page(dag_id, run_id, task_id, map_index)}/plugin/{TAB}"


def task_page(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    """The address of a task instance in Airflow's UI, below `[api] base_url` if that is set."""
    base: str = conf.get("api", "base_url", fallback="") or ""
    dag, run, task = (quote(part, safe="") for part in (dag_id, run_id, task_id))
    mapped = f"/mapped/{map_index}" if map_index is not None and map_index >= 0 else ""
    return f"{base.rstrip('/')}/dags/{dag}/runs/{run}/tasks/{task}{mapped}"
