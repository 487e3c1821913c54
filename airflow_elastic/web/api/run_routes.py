"""The routes of one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response

from airflow_elastic.views import checkpoints, events, history, logs, workers
from airflow_elastic.views.overview import overview
from airflow_elastic.web.api.answers import answer

if TYPE_CHECKING:
    from fastapi.params import Depends

    from airflow_elastic.web.api.host import Host


def routes_of_a_run(host: Host, *, edit: Sequence[Depends]) -> APIRouter:
    """What may be read of a run. The functions of `views` describe parameters and answers."""
    router = APIRouter()

    @router.get("")
    def run(request: Request) -> Response:
        opened = host.open(request)
        snapshot = opened.reader.snapshot()
        found = history.history(opened.reader)
        document = overview(snapshot, history.recent(found, snapshot.at), history.conditions(found))
        person = {"permissions": {"edit": opened.edit, "user": opened.user}, "actions": []}
        return answer(request, {**document, **person, "links": dict(opened.links)})

    @router.get("/history")
    def series(
        request: Request,
        names: str = "",
        since: float | None = None,
        until: float | None = None,
        points: int = 500,
    ) -> Response:
        found = history.history(host.open(request).reader)
        return answer(request, history.charted(found, names=names, since=since, until=until, points=points))

    @router.get("/heatmap")
    def heatmap(
        request: Request, since: float | None = None, until: float | None = None, columns: int = 240
    ) -> Response:
        found = history.history(host.open(request).reader)
        return answer(request, history.heatmap(found, since=since, until=until, columns=columns))

    @router.get("/workers")
    def all_workers(request: Request) -> Response:
        return answer(request, workers.workers(host.open(request).reader.snapshot()))

    @router.get("/events")
    def all_events(
        request: Request, after: int = -1, limit: int = 500, level: str = "", q: str = ""
    ) -> Response:
        snapshot = host.open(request).reader.snapshot()
        return answer(request, events.events(snapshot, after=after, limit=limit, level=level, q=q))

    @router.get("/logs")
    def all_logs(request: Request) -> Response:
        return answer(request, logs.logs(host.open(request).reader))

    @router.get("/logs/text")
    def log_text(
        request: Request,
        attempt: int,
        rank: int,
        generation: int | None = None,
        offset: int = -(64 << 10),
        limit: int = 64 << 10,
        q: str = "",
    ) -> Response:
        reader = host.open(request).reader
        found = logs.text(
            reader, attempt=attempt, rank=rank, generation=generation, offset=offset, limit=limit, q=q
        )
        return answer(request, found)

    @router.get("/checkpoints")
    def all_checkpoints(request: Request) -> Response:
        return answer(request, checkpoints.listed(host.open(request).reader))

    return router
