"""What Airflow's API server mounts below `/elastic`: the routes, and the built pages.

Airflow does not authenticate the applications of plugins, so each route here asks Airflow's auth manager. A user who
may read the task instance may read its run, and no other data. So the location of the run never comes from the
request, nor from values that users may edit.
"""

from __future__ import annotations

from typing import Annotated, Literal

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import RedirectResponse, Response

from airflow_elastic.operators.link import page_of
from airflow_elastic.web.airflow.host import AirflowHost
from airflow_elastic.web.airflow.permissions import remember_user, valid_ids
from airflow_elastic.web.api.answers import answer
from airflow_elastic.web.api.app import build
from airflow_elastic.web.pages import static_routes

_TASK_INSTANCE = DagAccessEntity.TASK_INSTANCE
_USER = Depends(remember_user)
_MAY_READ = Depends(requires_access_dag("GET", _TASK_INSTANCE))
_READ = [Depends(valid_ids), _MAY_READ, _USER]
_EDIT = [Depends(requires_access_dag("PUT", _TASK_INSTANCE))]

_MapIndex = Annotated[int, Query(ge=-1, lt=2**31)]


def application() -> FastAPI:
    """The application, with caches of its own."""
    host = AirflowHost()
    app = build(host, read=_READ, edit=_EDIT, read_all=[_MAY_READ], any_user=[_USER])
    app.include_router(static_routes())

    @app.get("/runs/{dag_id}/{run_id}/{task_id}", dependencies=_READ)
    def run_page(
        request: Request,
        dag_id: str,
        run_id: str,
        task_id: str,
        map_index: _MapIndex = -1,
        format: Annotated[Literal["html", "json"], Query()] = "html",
    ) -> Response:
        """The status document; for a browser the page of the run."""
        opened = host.open(request)
        if format == "json":
            return answer(request, opened.reader.snapshot().document)
        return RedirectResponse(page_of(dag_id, run_id, task_id, map_index), 307)

    return app
