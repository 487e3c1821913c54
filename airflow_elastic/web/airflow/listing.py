"""The runs of all task instances, out of Airflow's database: each is checked as if its page were opened."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.models.renderedtifields import RenderedTaskInstanceFields as Rendered
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from fastapi import HTTPException
from sqlalchemy import and_, select

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import ElasticError
from airflow_elastic.triggers.task import task_key
from airflow_elastic.views.all_runs.index import Place
from airflow_elastic.web.airflow.locate_run import Located, Locator, TaskInstance, check_owner, parameters

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

#: The most task instances in the list: the newest ones.
MOST = 2000


def path_of(ti: TaskInstance) -> str:
    """The path of a task instance's run in the routes."""
    parts = (ti.dag_id, ti.run_id, ti.task_id, str(ti.map_index))
    return "ti/" + "/".join(quote(part, safe="") for part in parts)


class Found:
    """The runs that Airflow's database knows, and their stores.

    Args:
        locator: checks where each run is.
    """

    def __init__(self, locator: Locator) -> None:
        self._locator = locator
        self._stores: dict[str, Store] = {}
        self._owned: set[tuple[str, str]] = set()

    def places(self) -> list[Place]:
        """The runs of the newest task instances. Those that may not be shown are left out."""
        places, stores = [], {}
        for ti, told, fields in self._rows():
            try:
                located = self._locator.check(ti, told, parameters(fields))
                self._check_owner(located, ti)
            except (HTTPException, ElasticError):
                continue
            path = path_of(ti)
            stores[path] = located.store
            places.append(
                Place(
                    path,
                    located.store.uri,
                    {
                        "dag_id": ti.dag_id,
                        "run_id": ti.run_id,
                        "task_id": ti.task_id,
                        "map_index": ti.map_index,
                    },
                )
            )
        self._stores = stores
        return places

    def open(self, place: Place) -> Store:
        """The store of a place that `places` has returned."""
        return self._stores[place.path]

    def _check_owner(self, located: Located, ti: TaskInstance) -> None:
        """Read the journal of a run once: owners are only ever added to it. Of most runs its first entry is enough."""
        known = (located.store.uri, task_key(ti))
        if known in self._owned:
            return
        journal = Journal(located.store)
        first = located.store.get(layout.journal_entry(0))
        if first is not None and getattr(journal.parse(0, first), "task", None) == known[1]:
            self._owned.add(known)  # who began it: the rest of the journal need not be read
            return
        tasks = {event.task for event in journal.read() if hasattr(event, "task")}
        if tasks:  # not before the run has begun
            check_owner(located.store.uri, tasks, known[1])
            self._owned.add(known)

    @staticmethod
    def _rows() -> list[tuple[TaskInstance, str, Any]]:
        """Task instances with an XCom `run_uri`: the XCom, and the rendered parameters. The newest first."""
        same = and_(
            Rendered.dag_id == XComModel.dag_id,
            Rendered.run_id == XComModel.run_id,
            Rendered.task_id == XComModel.task_id,
            Rendered.map_index == XComModel.map_index,
        )
        ids = (XComModel.dag_id, XComModel.run_id, XComModel.task_id, XComModel.map_index)
        query = (
            select(*ids, XComModel.value, Rendered.rendered_fields)
            .join(Rendered, same)
            .where(XComModel.key == "run_uri")
            .order_by(XComModel.timestamp.desc())
            .limit(MOST)
        )
        with create_session(scoped=False) as session:
            rows = session.execute(query).all()
        found = []
        for dag_id, run_id, task_id, map_index, value, fields in rows:
            told = _decoded(value)
            if isinstance(told, str):
                found.append((TaskInstance(dag_id, run_id, task_id, map_index), told, fields))
        return found


def _decoded(value: Any) -> Any:
    try:
        return json.loads(value)
    except (TypeError, ValueError):  # stored decoded
        return value
