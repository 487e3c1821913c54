"""What a person may do, by Airflow's auth manager, and Airflow's audit log."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from airflow.models.log import Log
from airflow.utils.session import create_session
from fastapi import HTTPException, Request

from airflow_elastic.web.airflow.locate_run import TaskInstance

#: The limit of Airflow's database columns, in characters.
_LONGEST_ID = 250

#: The readable DAGs of a person hold for so many seconds, for so many people.
_SECONDS, _MOST_PEOPLE = 10.0, 1000


def valid_ids(request: Request) -> None:
    """Refuse ids that no column of the database can have, before the database is asked. Raises HTTPException (422)."""
    for name in ("dag_id", "run_id", "task_id"):
        value = request.path_params.get(name, "")
        if not value or len(value) > _LONGEST_ID or "\0" in value:
            raise HTTPException(
                422, f"{name}: given {value[:80]!r}; allowed: 1 to {_LONGEST_ID} characters, none of them NUL"
            )
    given = request.path_params.get("map_index", request.query_params.get("map_index", "-1"))
    try:
        valid = -1 <= int(given) < 2**31 and str(int(given)) == given
    except ValueError:
        valid = False
    if not valid:
        raise HTTPException(422, f"map_index: given {given[:80]!r}; allowed: -1 to {2**31 - 1}")


def remember_user(request: Request, user: GetUserDep) -> None:
    """Keep the person who asks, for the routes. Without one, Airflow's own dependency answers 401."""
    request.state.elastic_user = user


def user_of(request: Request) -> Any:
    """The person who asks."""
    return request.state.elastic_user


def task_instance(request: Request) -> TaskInstance:
    """The task instance that the path names. Its ids are valid."""
    ids = request.path_params
    index = ids.get("map_index", request.query_params.get("map_index", "-1"))
    return TaskInstance(ids["dag_id"], ids["run_id"], ids["task_id"], int(index))


def may_edit(user: Any, dag_id: str) -> bool:
    """Whether a person may edit task instances of a DAG, as Airflow's own routes ask before they do."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return get_auth_manager().is_authorized_dag(
        method="PUT", access_entity=DagAccessEntity.TASK_INSTANCE, details=details, user=user
    )


class ReadableDags:
    """The DAGs that people may read, as they were some seconds ago: to ask for all of them costs a look at each."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, set[str]]] = {}

    def of(self, user: Any) -> set[str]:
        """The ids of all DAGs that a person may read."""
        now, who = time.monotonic(), f"{type(user).__name__} {user.get_id()}"
        at, dags = self._known.get(who, (0.0, set[str]()))
        if not at or now - at > _SECONDS:
            dags = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
            if len(self._known) >= _MOST_PEOPLE:
                self._known.clear()
            self._known[who] = now, dags
        return dags


def name_of(user: Any) -> str:
    """The name of a person for records."""
    return str(user.get_name())


def log_action(user: Any, ti: TaskInstance, action: str, given: Mapping[str, Any]) -> None:
    """Write an entry into Airflow's audit log, before the action is asked for."""
    with create_session() as session:
        session.add(
            Log(
                event=f"elastic_{action}"[:60],
                owner=name_of(user),
                owner_display_name=name_of(user),
                extra=json.dumps(given, default=str)[:2000],
                dag_id=ti.dag_id,
                task_id=ti.task_id,
                run_id=ti.run_id,
                map_index=ti.map_index,
            )
        )
