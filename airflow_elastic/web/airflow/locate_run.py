"""Find where the run of one task instance is stored, and the connections to read it with.

The XCom `run_uri` has the URI, but users may edit XComs. So the URI must match the task's rendered parameters, which
only tasks can write. It must also be below a root that an administrator has configured, because the API server
reads it with its own rights.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.models import Connection, DagModel
from airflow.models.renderedtifields import RenderedTaskInstanceFields as Rendered
from airflow.models.xcom import XComModel
from airflow.sdk.exceptions import AirflowNotFoundException
from fastapi import HTTPException
from sqlalchemy import select

from airflow_elastic.adapters.storage.s3.store import S3Store
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.operators.task.naming import default_uri
from airflow_elastic.spec.errors import InvalidInput

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_elastic.adapters.storage.store import Store

#: Parameters of the operator that decide where its run is stored.
_NAMES = ("run_uri", "elastic_conn_id", "aws_conn_id")

#: Suffix of the run URI of a task that had succeeded and was cleared.
_AGAIN = re.compile(r"(~[1-9][0-9]*)?")


#: What was found about a task instance is found again after so many seconds. And the most of it to keep.
_SECONDS, _MOST = 30.0, 5000

#: A client of S3 is made again after so many seconds: the connection may have other credentials.
_CLIENT_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """One task instance, the same for all its tries; `map_index` is -1 if it is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    def xcom(self, session: Session, key: str) -> Any:
        """An XCom of the task instance, from the database. None without one."""
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
        """Its rendered parameters. Raises HTTPException if Airflow has removed them."""
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
                "Airflow has removed the rendered fields of this task instance, which say where its run is stored. "
                "Raise [core] num_dag_runs_to_retain_rendered_fields, or read the run with `airflow-elastic status`",
            )
        return parameters(fields)


def parameters(fields: Any) -> dict[str, str | None]:
    """Of rendered fields, the parameters that decide where the run is stored."""
    return {name: fields[name] if isinstance(fields.get(name), str) else None for name in _NAMES}


@dataclass(frozen=True, slots=True)
class Located:
    """The store of a run, and the ids of the connections with which it is opened."""

    store: Store
    connections: tuple[str, str | None]


class Locator:
    """Finds the runs of task instances. What it has found holds for half a minute; may be used by many threads."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[float, Located]] = {}
        self._clients: dict[object, tuple[float, S3Store]] = {}

    def locate(self, session: Session, ti: TaskInstance) -> Located:
        """The run of a task instance.

        Raises:
            HTTPException: the task instance has no run (404), or this page may not read it (403).
            ElasticError: a connection or a URI of its parameters cannot be used here.
        """
        told = ti.xcom(session, "run_uri")
        if not isinstance(told, str):
            raise HTTPException(
                404, "this task instance has no elastic run: it has not begun, or it is not an elastic task"
            )
        return self.check(ti, told, ti.rendered(session))

    def check(self, ti: TaskInstance, told: str, rendered: dict[str, str | None]) -> Located:
        """The run at the URI of the XCom, if it may be that of the task instance. Raises as `locate`."""
        key = (ti, told, *rendered.values())
        at, located = self._known.get(key, (0.0, None))
        now = time.monotonic()
        if located is None or now - at > _SECONDS:
            try:
                located = self._sharing(_checked(ti, told, rendered), now)
            except AirflowNotFoundException as error:
                raise HTTPException(
                    404, f"{error} on the API server, which needs it to find the run: define it there, too"
                ) from error
            if len(self._known) > _MOST:
                self._known.clear()
            self._known[key] = now, located
        return located

    def _sharing(self, located: Located, now: float) -> Located:
        """The same with one client for all runs of a bucket and connection, made again after a while."""
        store = located.store
        if not isinstance(store, S3Store):
            return located
        bucket = (located.connections, store.uri.removeprefix("s3://").partition("/")[0])
        made, first = self._clients.get(bucket, (0.0, store))
        if not made or now - made > _CLIENT_SECONDS:
            made, first = self._clients[bucket] = now, store
        return replace(located, store=store.sharing(first))


def check_owner(uri: str, tasks: Collection[str | None], key: str) -> None:
    """Refuse a run whose journal names other tasks. Journals of earlier releases name no task, and are accepted.

    Args:
        uri: of the run.
        tasks: the tasks that its journal names.
        key: the task that asks (`triggers.task.task_key`).

    Raises:
        HTTPException: it belongs to another task (403).
    """
    if key not in tasks and not set(tasks) <= {None}:
        raise HTTPException(403, f"the run at {uri} belongs to another task")


def _checked(ti: TaskInstance, told: str, rendered: dict[str, str | None]) -> Located:
    conn_id = rendered["elastic_conn_id"] or ElasticHook.default_conn_name
    hook = _TeamHook(ti.dag_id, conn_id, aws_conn_id=rendered["aws_conn_id"])
    roots = [hook.run_root, *_page_roots()]
    # Without a run_uri, the root at the start of the task may be any of the roots.
    own = [rendered["run_uri"]] if rendered["run_uri"] else [default_uri(root, ti) for root in roots]
    if not any(_is_at(told, hook.open_store(uri).uri) for uri in own):
        raise HTTPException(
            403, "the XCom run_uri of this task instance names a run that is not the task's own"
        )
    if not any(_is_below(told, root, hook) for root in roots):
        raise HTTPException(
            403,
            f"this page may not read the run at {told}: it is below none of the configured folders and prefixes. "
            "Ask an administrator to add one to [elastic] page_roots",
        )
    return Located(hook.open_store(told), (conn_id, hook.aws_conn_id))


class _TeamHook(ElasticHook):
    """Settings of the connection of a DAG's team. The API server serves all teams, and has none itself."""

    def __init__(self, dag_id: str, elastic_conn_id: str, *, aws_conn_id: str | None) -> None:
        super().__init__(elastic_conn_id, aws_conn_id=aws_conn_id)
        self._dag_id = dag_id

    def _connection(self) -> Any:
        team = DagModel.get_team_name(self._dag_id) if conf.getboolean("core", "multi_team") else None
        if team is None:
            return super()._connection()
        return Connection.get_connection_from_secrets(self.elastic_conn_id, team_name=team)


def page_roots() -> list[str]:
    """The folders and prefixes below which runs may be read, for tasks with the default connection."""
    return [ElasticHook().run_root, *_page_roots()]


def _is_at(uri: str, own: str) -> bool:
    own = own.rstrip("/")
    return uri.startswith(own) and _AGAIN.fullmatch(uri[len(own) :]) is not None


def _page_roots() -> list[str]:
    listed: str = conf.get("elastic", "page_roots", fallback="") or ""
    return [root.strip() for root in listed.split(",") if root.strip()]


def _is_below(uri: str, root: str, hook: ElasticHook) -> bool:
    try:
        above = hook.open_store(root).uri
    except InvalidInput:  # no run is below an invalid root
        return False
    if not uri.startswith("s3://"):
        uri, above = os.path.realpath(uri), os.path.realpath(above)
    return uri.startswith(above.rstrip("/") + "/")
