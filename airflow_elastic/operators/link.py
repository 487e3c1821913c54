"""The button on a task instance that opens the page of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class ElasticRunLink(BaseOperatorLink):
    """Opens the page of `airflow_elastic.web`. It works as soon as the task has begun, also while it is deferred."""

    name = "Elastic run"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The URL of the page; below `[api] base_url`, if that is set."""
        base: str = conf.get("api", "base_url", fallback="") or ""
        parts = (ti_key.dag_id, ti_key.run_id, ti_key.task_id)
        path = "/".join(quote(part, safe="") for part in parts)
        return f"{base.rstrip('/')}/elastic/runs/{path}?map_index={ti_key.map_index}"
