"""The routes of one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import Response

from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.spec.errors import InvalidInput, RunMissing, SpecError
from airflow_elastic.views import actions, checkpoints, events, history, logs, overview, workers
from airflow_elastic.web.api.answers import answer, extended, prepared
from airflow_elastic.web.api.guard import checked

if TYPE_CHECKING:
    from fastapi import params

    from airflow_elastic.web.api.host import Host


def routes_of_a_run(host: Host, *, edit: Sequence[params.Depends]) -> APIRouter:
    """What may be read of a run, and asked of it. The functions of `views` describe parameters and answers."""
    router = APIRouter()

    @router.get("")
    def run(request: Request) -> Response:
        opened = host.open(request)
        reader = opened.reader
        snapshot = reader.snapshot()
        own = {
            "permissions": {"edit": opened.edit, "user": opened.user},
            "actions": actions.actions(snapshot, edit=opened.edit),
            "links": dict(opened.links),
        }
        return answer(request, extended(overview.shown(reader, snapshot, prepared), own))

    @router.get("/history")
    def series(
        request: Request,
        names: str = "",
        since: float | None = None,
        until: float | None = None,
        points: int = 500,
    ) -> Response:
        reader = host.open(request).reader
        found = history.charted(reader, prepared, names=names, since=since, until=until, points=points)
        return answer(request, found)

    @router.get("/heatmap")
    def heatmap(
        request: Request, since: float | None = None, until: float | None = None, columns: int = 240
    ) -> Response:
        reader = host.open(request).reader
        return answer(request, history.heatmap(reader, prepared, since=since, until=until, columns=columns))

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

    @router.post("/actions/{name}", dependencies=[Depends(checked(host)), *edit])
    def act(request: Request, name: str, given: dict[str, Any]) -> Response:
        opened = host.open(request)
        if not opened.edit:
            raise HTTPException(403, "you may look at this run, but not change it")
        if name not in actions.NAMES:  # no record of what is no action
            raise HTTPException(400, f"action: given {name[:80]!r}; allowed: {', '.join(actions.NAMES)}")
        host.audit(request, opened, name, given)
        try:
            text = actions.ask(opened.reader.snapshot(0.0), name, given, by=opened.user or "somebody unknown")
        except RunMissing:
            raise
        except SpecError as error:
            raise HTTPException(400, str(error)) from error
        except (InvalidInput, CheckpointDamaged) as error:
            raise HTTPException(409, str(error)) from error
        opened.reader.forget()
        return answer(request, {"text": text}, status=202)

    return router
