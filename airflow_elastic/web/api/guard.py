"""What is refused before anything is done: requests that another site may have made in the person's name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from fastapi import HTTPException, Request

if TYPE_CHECKING:
    from airflow_elastic.web.api.host import Host

#: A header that no form of another site can send.
MARK = "x-elastic-request"


def checked(host: Host) -> Callable[[Request], Awaitable[None]]:
    """A dependency that lets only our own pages pass, and programs with their own credentials.

    A browser adds cookies also to requests that another site makes. So a request with cookies needs the `Origin` of
    our pages. All need the header `X-Elastic-Request: 1` and a body of JSON, which other sites cannot send.
    """

    async def check(request: Request) -> None:
        if request.headers.get(MARK) != "1":
            raise HTTPException(403, "the header X-Elastic-Request: 1 is missing, which our pages send")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPException(415, f"given content type {kind[:80]!r}; allowed: application/json")
        origin = request.headers.get("origin")
        if origin is None and "cookie" in request.headers:
            raise HTTPException(403, "a request with cookies needs an Origin, and this one has none")
        if origin is not None and origin.lower() not in host.origins(request):
            raise HTTPException(403, f"requests from {origin[:200]!r} are refused: it is another site")

    return check


def own_origins(request: Request, *more: str) -> set[str]:
    """The origins under which the request itself has reached us, and further ones.

    Args:
        request: its `Host` names us.
        more: URLs under which we are known, e.g. behind a proxy.
    """
    hosts = {request.headers.get("host", "").lower()}
    found = {f"{scheme}://{one}" for one in hosts if one for scheme in (request.url.scheme, "https")}
    for url in more:
        scheme, separator, rest = url.lower().partition("://")
        if separator:
            found.add(f"{scheme}://{rest.partition('/')[0]}")
    return found
