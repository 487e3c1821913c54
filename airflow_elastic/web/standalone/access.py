"""Who may use the server of `airflow-elastic ui`: who has its token, from this machine, under its own name."""

from __future__ import annotations

import hmac
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

#: With any port: a tunnel may lead here from another one.
_OWN_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)


class Access:
    """Lets requests pass that have the token, in a cookie or as `Authorization: Bearer TOKEN`.

    The first visit has it in the address, as `?token=TOKEN`. The answer sets the cookie and leads to the address
    without it. `Host` must be a name of loopback: another site may let its own name lead
    here, and would then read the answers.

    Args:
        app: the application behind it.
        token: the secret.
        port: of this server. Its cookie is not that of another such server on this machine.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app, self._token = app, token
        self._cookie = f"airflow_elastic_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            await refusal(scope, receive, send)
        elif scope["type"] == "http":  # there are no web sockets
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not _OWN_HOST.fullmatch(headers.get("host", "")):
            return PlainTextResponse("this server answers under localhost and 127.0.0.1 only", 421)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == "token"), None)
        if given is not None and scope["method"] in ("GET", "HEAD"):
            return self._first_visit(scope, given, [pair for pair in query if pair[0] != "token"])
        told = headers.get("authorization", "")
        kind, _, bearer = told.partition(" ")
        if (kind.lower() == "bearer" and self._is(bearer)) or self._is(self._of_cookie(headers)):
            return None
        return self._denied()

    def _first_visit(self, scope: Scope, given: str, rest: list[tuple[str, str]]) -> Response:
        if not self._is(given):
            return self._denied()
        # A path with two slashes at its beginning would lead to another host.
        path = "/" + scope["path"].lstrip("/\\")
        answer = RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), 303)
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        answer.headers["Cache-Control"] = "no-store"
        answer.headers["Referrer-Policy"] = "no-referrer"
        return answer

    def _of_cookie(self, headers: Headers) -> str:
        # Python's own parser loses all cookies if another program on this machine has set one that it cannot read.
        return cookie_parser(headers.get("cookie", "")).get(self._cookie, "")

    def _is(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self._token.encode())

    @staticmethod
    def _denied() -> Response:
        text = "This page needs its token: open the address that `airflow-elastic ui` has printed."
        return PlainTextResponse(
            text, 401, {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
        )
