"""The page of a run: the status document of one task instance, as HTML or JSON. Read-only.

Airflow does not authenticate the applications of plugins, so each route here asks Airflow's auth manager. A user who
may read the task instance may read its run, and no other data. So the location of the run never comes from the
request, nor from values that users may edit.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import jinja2
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Query
from fastapi import Path as InPath
from fastapi.responses import HTMLResponse, JSONResponse, Response

from airflow_elastic.control.runs import Run
from airflow_elastic.core.event_sentences import restoring, sizes, waits
from airflow_elastic.core.phases import named, results
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.errors import ElasticError, RunMissing
from airflow_elastic.spec.status import Wait
from airflow_elastic.web.airflow.locate_run import TaskInstance, locate

#: Without FastAPI's documentation, which everybody could read.
app = FastAPI(title="airflow-elastic", docs_url=None, redoc_url=None, openapi_url=None)

_READ = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))

#: The limits of Airflow's database columns.
_Id = Annotated[str, InPath(max_length=250, pattern=r"^[^\x00]+$")]
_MapIndex = Annotated[int, Query(ge=-1, lt=2**31)]

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def _moment(seconds: float | None) -> str:
    """Epoch seconds as a text."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_pages = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
)
_pages.filters["moment"] = _moment
_pages.filters["waits"] = lambda wait: waits(decode(Wait, wait))
_pages.filters["sizes"] = sizes
_pages.filters["named"], _pages.filters["results"] = named, results
_pages.filters["restoring"] = lambda reading: restoring(reading["bytes"], reading["of_bytes"])


@app.get("/runs/{dag_id}/{run_id}/{task_id}", dependencies=[_READ], response_model=None)
def run_page(
    dag_id: _Id,
    run_id: _Id,
    task_id: _Id,
    session: SessionDep,
    map_index: _MapIndex = -1,
    format: Annotated[Literal["html", "json"], Query()] = "html",
) -> Response:
    """The status of the run of one task instance."""
    try:
        status = Run(locate(session, TaskInstance(dag_id, run_id, task_id, map_index))).status()
    except RunMissing as error:
        raise HTTPException(404, str(error)) from error
    except ElasticError as error:
        raise HTTPException(503, f"the run cannot be read from the API server: {error}") from error
    if format == "json":
        return JSONResponse(status, headers=_HEADERS)
    title = f"{dag_id}.{task_id}" + (f" [{map_index}]" if map_index >= 0 else "")
    page = _pages.get_template("run.html").render(
        status=status, title=title, run_id=run_id, map_index=map_index
    )
    return HTMLResponse(page, headers=_HEADERS)
