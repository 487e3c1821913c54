"""Where the run of one task instance is stored, and with which connections it is read.

The XCom `run_uri` says so, but people may edit XComs. So it only chooses among what the task itself has said: where its
own parameters, as it has rendered them, let its run be. Airflow keeps these where tasks alone write. And it has to be
below a root that an administrator has configured, as it is read with the API server's own rights.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.models.renderedtifields import RenderedTaskInstanceFields as Rendered
from airflow.models.xcom import XComModel
from fastapi import HTTPException
from sqlalchemy import select

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.operators.naming import default_uri
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.triggers.task import task_key

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_elastic.adapters.storage.store import Store

#: Parameters of the operator that say where its run is stored.
_NAMES = ("run_uri", "elastic_conn_id", "aws_conn_id")

#: What a task that had succeeded, and was cleared, has behind its run URI.
_AGAIN = re.compile(r"(~[1-9][0-9]*)?")


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """One task instance, whichever its try; `map_index` is -1 where it is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    def xcom(self, session: Session, key: str) -> Any:
        """Its XCom, as the database holds it; None where there is none."""
        query = XComModel.get_many(
            run_id=self.run_id,
            key=key,
            task_ids=self.task_id,
            dag_ids=self.dag_id,
            map_indexes=self.map_index,
            limit=1,
        )
        row: Any = session.scalars(query).first()
        if row is None:
            return None
        try:
            return json.loads(row.value)
        except (TypeError, ValueError):  # stored decoded
            return row.value

    def rendered(self, session: Session) -> dict[str, str | None]:
        """What its parameters were rendered to. Raises HTTPException where Airflow does not keep that any more."""
        query = select(Rendered.rendered_fields).where(
            Rendered.dag_id == self.dag_id,
            Rendered.run_id == self.run_id,
            Rendered.task_id == self.task_id,
            Rendered.map_index == self.map_index,
        )
        fields = session.scalars(query).first()
        if fields is None:
            raise HTTPException(
                404,
                "Airflow does not keep any more what this task instance has rendered, so nobody can tell where its run "
                "is stored: raise [core] num_dag_runs_to_retain_rendered_fields, or read the run with "
                "`airflow-elastic status`",
            )
        return {name: fields[name] if isinstance(fields.get(name), str) else None for name in _NAMES}


def locate(session: Session, ti: TaskInstance) -> Store:
    """The store of a task instance's run.

    Raises:
        HTTPException: it has none (404), or one that this page may not read (403).
        ElasticError: what its parameters say cannot be used here.
    """
    told = ti.xcom(session, "run_uri")
    if not isinstance(told, str):
        raise HTTPException(
            404, "this task instance has no elastic run: it has not begun, or is no elastic task"
        )
    rendered = ti.rendered(session)
    hook = ElasticHook(
        rendered["elastic_conn_id"] or ElasticHook.default_conn_name, aws_conn_id=rendered["aws_conn_id"]
    )
    roots = [hook.run_root, *_page_roots()]
    # A root of former times may be among them.
    own = [rendered["run_uri"]] if rendered["run_uri"] else [default_uri(root, ti) for root in roots]
    if not any(_is_at(told, hook.open_store(uri).uri) for uri in own):
        raise HTTPException(
            403, "the XCom run_uri of this task instance names a run that is not the task's own"
        )
    if not any(_is_below(told, root, hook) for root in roots):
        raise HTTPException(
            403,
            f"the run is stored at {told}, which is below none of the folders and prefixes that this page may read: "
            "have an administrator add one to [elastic] page_roots",
        )
    store = hook.open_store(told)
    if not _is_of(store, task_key(ti)):
        raise HTTPException(403, f"the run at {told} is another task's")
    return store


def _is_at(uri: str, own: str) -> bool:
    own = own.rstrip("/")
    return uri.startswith(own) and _AGAIN.fullmatch(uri[len(own) :]) is not None


def _page_roots() -> list[str]:
    listed: str = conf.get("elastic", "page_roots", fallback="") or ""
    return [root.strip() for root in listed.split(",") if root.strip()]


def _is_below(uri: str, root: str, hook: ElasticHook) -> bool:
    try:
        above = hook.open_store(root).uri
    except InvalidInput:  # a root that is none has nothing below it
        return False
    if not uri.startswith("s3://"):
        uri, above = os.path.realpath(uri), os.path.realpath(above)
    return uri.startswith(above.rstrip("/") + "/")


def _is_of(store: Store, key: str) -> bool:
    """Whether the task has had the run, by the run's own journal; earlier releases did not note whose it was."""
    events = Journal(store).read()
    tasks = {event.task for event in events if hasattr(event, "task")}
    return key in tasks or tasks <= {None}
