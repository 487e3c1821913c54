"""The page of a run: the status document of one task instance, for a person and as JSON. Read-only.

Airflow does not authenticate the applications of plugins; each route here asks Airflow's auth manager itself. Where a
run lies is looked up in the task instance's own XComs, never taken from the request: whoever may read the task
instance may read its run, and nothing else.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import jinja2
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.models.xcom import XComModel
from fastapi import Depends, FastAPI, HTTPException, Query
from fastapi.responses import HTMLResponse, JSONResponse, Response

from airflow_elastic.control.runs import Run
from airflow_elastic.core.tell import restoring, sizes, waits
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.errors import ElasticError, RunMissing
from airflow_elastic.spec.status import Wait

#: The documentation that FastAPI would serve is open to everybody: there is none.
app = FastAPI(title="airflow-elastic", docs_url=None, redoc_url=None, openapi_url=None)

_READ = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def _moment(seconds: float | None) -> str:
    """Epoch seconds for a person."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_pages = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
)
_pages.filters["moment"] = _moment
_pages.filters["waits"] = lambda wait: waits(decode(Wait, wait))
_pages.filters["sizes"] = sizes
_pages.filters["restoring"] = lambda reading: restoring(reading["bytes"], reading["of_bytes"])


@app.get("/runs/{dag_id}/{run_id}/{task_id}", dependencies=[_READ], response_model=None)
def run_page(
    dag_id: str,
    run_id: str,
    task_id: str,
    session: SessionDep,
    map_index: Annotated[int, Query(ge=-1)] = -1,
    format: Annotated[Literal["html", "json"], Query()] = "html",
) -> Response:
    """The status of the run of one task instance."""

    def xcom(key: str) -> Any:
        return _xcom(session, key, dag_id, run_id, task_id, map_index)

    uri = xcom("run_uri")
    if not isinstance(uri, str):
        raise HTTPException(
            404, "this task instance has no elastic run: it has not begun, or is no elastic task"
        )
    connections = xcom("run_connections")
    try:
        hook = ElasticHook(**connections) if isinstance(connections, dict) else ElasticHook()
        status = Run(hook.open_store(uri)).status()
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


def _xcom(session: Any, key: str, dag_id: str, run_id: str, task_id: str, map_index: int) -> Any:
    """An XCom of exactly this task instance, as the database holds it; None where there is none."""
    query = XComModel.get_many(
        run_id=run_id, key=key, task_ids=task_id, dag_ids=dag_id, map_indexes=map_index, limit=1
    )
    row = session.scalars(query).first()
    if row is None:
        return None
    try:
        return json.loads(row.value)
    except (TypeError, ValueError):  # stored decoded
        return row.value
