"""The routes of one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response

from airflow_elastic.views.overview import overview
from airflow_elastic.web.api.answers import answer

if TYPE_CHECKING:
    from fastapi.params import Depends

    from airflow_elastic.web.api.host import Host


def routes_of_a_run(host: Host, *, edit: Sequence[Depends]) -> APIRouter:
    """All routes below the path of a run."""
    router = APIRouter()

    @router.get("")
    def run(request: Request) -> Response:
        """The overview."""
        opened = host.open(request)
        document = overview(opened.reader.snapshot())
        person = {
            "permissions": {"edit": opened.edit, "user": opened.user},
            "actions": [],
            "links": {**opened.links},
        }
        return answer(request, {**document, **person})

    return router
