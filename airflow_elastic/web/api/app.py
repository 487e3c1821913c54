"""Builds the application that answers the pages: routes of one run, and of the list of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response

import airflow_elastic
from airflow_elastic.spec.errors import ElasticError, InvalidInput, RunMissing
from airflow_elastic.views.all_runs.run_list import listed
from airflow_elastic.web.api.answers import WithHeaders, answer
from airflow_elastic.web.api.run_routes import routes_of_a_run

if TYPE_CHECKING:
    from fastapi.params import Depends

    from airflow_elastic.web.api.host import Host

#: How often pages ask again while they are visible, in seconds.
POLL_SECONDS = 3


def build(
    host: Host,
    *,
    read: Sequence[Depends] = (),
    edit: Sequence[Depends] = (),
    read_all: Sequence[Depends] = (),
    any_user: Sequence[Depends] = (),
) -> FastAPI:
    """The application of a host, without FastAPI's documentation, which everybody could read.

    Args:
        host: which runs there are, and who may do what.
        read: what a route of one run asks first: whether the person may read it.
        edit: what an action asks first: whether the person may edit the run.
        read_all: what the list asks first: whether the person may read runs at all.
        any_user: what all routes without a run ask first.
    """
    app = FastAPI(title="airflow-elastic", docs_url=None, redoc_url=None, openapi_url=None)
    api = APIRouter(prefix="/api")
    api.include_router(_list_routes(host, read_all), dependencies=[*any_user])
    api.include_router(routes_of_a_run(host, edit=edit), prefix=host.pattern, dependencies=[*read])
    app.include_router(api)
    app.add_exception_handler(ElasticError, _failed)
    app.add_middleware(WithHeaders)
    return app


def _list_routes(host: Host, read_all: Sequence[Depends]) -> APIRouter:
    router = APIRouter()

    @router.get("/config")
    def config(request: Request) -> Response:
        """What a page needs to know first."""
        return answer(
            request,
            {
                "version": airflow_elastic.__version__,
                "mode": host.mode,
                "roots": host.roots(),
                "poll_seconds": POLL_SECONDS,
            },
        )

    @router.get("/runs", dependencies=[*read_all])
    def runs(
        request: Request,
        state: str = "",
        q: str = "",
        sort: str = "-updated",
        limit: int = 100,
        offset: int = 0,
    ) -> Response:
        """A page of the list of runs."""
        at, rows = host.listed(request)
        page = listed(
            rows, at=at, state=state, q=q, sort=sort, limit=max(0, min(limit, 1000)), offset=max(0, offset)
        )
        return answer(request, {**page, "runs": host.index.with_curves(page["runs"])})

    return router


def _failed(request: Request, error: Exception) -> Response:
    """An `ElasticError`: it has a sentence for the person."""
    status = 404 if isinstance(error, RunMissing) else 400 if isinstance(error, InvalidInput) else 503
    words = str(error) if status != 503 else f"the run cannot be read from this server: {error}"
    return JSONResponse({"detail": words}, status_code=status)
