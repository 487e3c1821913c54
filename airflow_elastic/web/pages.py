"""The built pages: scripts and styles of `static/`, which `make setup` builds from `ui/`."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse, Response

STATIC = Path(__file__).parent / "static"

#: Of a page: it runs only its own scripts. Styles are made by its components.
PAGE_HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'self'",
            "form-action 'none'",
            "frame-ancestors 'self'",
        )
    )
}

_MISSING = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>The pages are not built</title></head>
<body style="font: 16px/1.5 system-ui, sans-serif; margin: 3rem auto; max-width: 40rem; padding: 0 1rem">
<h1>The pages are not built</h1>
<p>This is a checkout whose pages have not been built yet. Run <code>make setup</code> in it, then load this page
again. An installed wheel has them.</p></body></html>
"""

#: A component of React that says the same, where Airflow looks for one.
_NO_BUNDLE = """globalThis.AirflowPlugin = () =>
  "The pages are not built: run `make setup` in the checkout of airflow-elastic, then load this page again.";
"""

#: By the ends of names; a system's own table may lack some.
_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".map": "application/json",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


def static_routes(folder: Path = STATIC) -> APIRouter:
    """`/static/NAME`: the files of the folder, which everybody may read, as in any wheel."""
    router = APIRouter()

    @router.get("/static/{name:path}")
    def static(request: Request, name: str) -> Response:
        """One file. Browsers ask for it each time, and get 304 where it has not changed."""
        path = folder / name
        known = (
            "\0" not in name
            and path.suffix in _TYPES
            and path.resolve().is_relative_to(folder.resolve())
            and path.is_file()
        )
        if not known:
            if name == "main.js":
                return Response(
                    _NO_BUNDLE, media_type="text/javascript", headers={"Cache-Control": "no-cache"}
                )
            raise HTTPException(404, "there is no such file")
        answer = FileResponse(
            path,
            media_type=_TYPES[path.suffix],
            headers={"Cache-Control": "no-cache"},
            stat_result=path.stat(),
        )
        if answer.headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers={"ETag": answer.headers["etag"]})
        return answer

    return router


def page(request: Request, folder: Path = STATIC) -> Response:
    """The page that loads all others, or one that says how to build it."""
    index = folder / "index.html"
    if not index.is_file():
        return HTMLResponse(_MISSING, status_code=503, headers=PAGE_HEADERS)
    return HTMLResponse(index.read_text(), headers=PAGE_HEADERS)
