"""Airflow's API server as a host of the pages: each run is that of a task instance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.utils.session import create_session

from airflow_elastic.operators.link import task_page
from airflow_elastic.triggers.task import task_key
from airflow_elastic.views.all_runs.index import Index
from airflow_elastic.views.cache import Readers
from airflow_elastic.web.airflow import listing, permissions
from airflow_elastic.web.airflow.locate_run import Located, Locator, check_owner, page_roots
from airflow_elastic.web.api.guard import own_origins
from airflow_elastic.web.api.host import Opened

if TYPE_CHECKING:
    from fastapi import Request


class AirflowHost:
    """Opens the runs of task instances for who may read them."""

    mode = "airflow"
    pattern = "/ti/{dag_id}/{run_id}/{task_id}/{map_index}"

    def __init__(self) -> None:
        self.readers = Readers()
        self._locator = Locator()
        self._readable = permissions.ReadableDags()
        self._found = listing.Found(self._locator)
        self.index = Index(self._found.places, self._found.open)

    def roots(self) -> list[str]:
        return page_roots()

    def open(self, request: Request) -> Opened:
        ti, user = permissions.task_instance(request), permissions.user_of(request)
        with create_session(scoped=False) as session:
            located: Located = self._locator.locate(session, ti)
        reader = self.readers.of(located.store, key=(located.store.uri, located.connections))
        reader.use(located.store)
        check_owner(located.store.uri, reader.snapshot().tasks, task_key(ti))
        return Opened(
            reader,
            listing.path_of(ti),
            permissions.name_of(user),
            edit=permissions.may_edit(user, ti.dag_id),
            links={"log": task_page(ti.dag_id, ti.run_id, ti.task_id, ti.map_index)},
        )

    def listed(self, request: Request) -> tuple[float, list[dict[str, Any]]]:
        dags = self._readable.of(permissions.user_of(request))
        at, rows = self.index.rows()
        return at, [row for row in rows if row["dag_id"] in dags]

    def origins(self, request: Request) -> set[str]:
        return own_origins(request, conf.get("api", "base_url", fallback="") or "")

    def audit(self, request: Request, opened: Opened, action: str, given: Mapping[str, Any]) -> None:
        ti = permissions.task_instance(request)
        permissions.log_action(permissions.user_of(request), ti, action, given)
