"""The server behind `airflow-elastic ui`."""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.middleware.gzip import GZipMiddleware

from airflow_elastic.spec.errors import ElasticError, InvalidInput
from airflow_elastic.web.api.app import build
from airflow_elastic.web.pages import STATIC, page, static_routes
from airflow_elastic.web.standalone.access import Access
from airflow_elastic.web.standalone.prometheus import CONTENT_TYPE, exposition
from airflow_elastic.web.standalone.runs import RunsBelow

#: Without --port: this one, or one of the next.
PORT, PORTS = 8750, 20


def application(root: str | RunsBelow, token: str, port: int, *, static: Path = STATIC) -> Access:
    """The whole application of the server.

    Args:
        root: the URI below which the runs are, or the host for it.
        token: what who asks must have.
        port: where the server listens.
        static: folder of the built pages.

    Raises:
        InvalidInput: the URI cannot be one.
    """
    host = RunsBelow(root) if isinstance(root, str) else root
    app = build(host)
    _add_metrics(app, host)
    _add_pages(app, static)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)
    return Access(app, token, port)


def _add_metrics(app: FastAPI, host: RunsBelow) -> None:
    @app.get("/metrics")
    def metrics() -> Response:
        """What Prometheus reads, which has the token under `authorization`."""
        at, rows = host.index.rows()
        return Response(exposition(rows, at).encode(errors="replace"), media_type=CONTENT_TYPE)


def _add_pages(app: FastAPI, static: Path) -> None:
    app.include_router(static_routes(static))

    @app.get("/")
    def the_page(request: Request) -> Response:
        """The page. It reads what to show from the query."""
        return page(request, static)


def serve(
    root: str, *, port: int | None, browser: bool, say: Callable[[str], None], token: str | None = None
) -> None:
    """Serve the pages of all runs below a URI, until Ctrl-C.

    Args:
        root: the URI.
        port: on 127.0.0.1; 0 for a free one. Default: 8750, or one of the next if that is taken.
        browser: whether to open the page in a browser.
        say: is called with lines for the person.
        token: what who asks must have. Default: a new one.

    Raises:
        InvalidInput: the URI cannot be one, or the port cannot be used.
        ElasticError: no port is free.
    """
    listener = _listen(port)
    with contextlib.closing(listener):
        bound: int = listener.getsockname()[1]
        token = token or secrets.token_urlsafe(24)
        app = application(root, token, bound)
        address = f"http://127.0.0.1:{bound}/?token={quote(token, safe='')}"
        say(f"The runs below {root}: {address}")
        say("The address has a secret: who has it can stop and scale these runs. Ctrl-C ends the server.")
        if browser:
            webbrowser.open(address)
        # Without access logs, which would show the token.
        sys.setswitchinterval(0.001)  # what is read behind the back keeps answers waiting for less long
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
        uvicorn.Server(config).run(sockets=[listener])


def _listen(port: int | None) -> socket.socket:
    """A socket on loopback."""
    wanted = range(PORT, PORT + PORTS) if port is None else (port,)
    for number in wanted:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", number))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if port is not None:
                raise InvalidInput(
                    f"port {port} cannot be used: {error.strerror or error}; give another, or 0 for a free one"
                ) from error
        else:
            return listener
    raise ElasticError(f"the ports {PORT} to {PORT + PORTS - 1} are taken: give a free one with --port")
