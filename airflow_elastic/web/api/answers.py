"""Answers: JSON with an ETag, and the headers that every answer has."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi.responses import Response
from starlette.datastructures import MutableHeaders

from airflow_elastic.core.units import json_number

if TYPE_CHECKING:
    from fastapi import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Of every answer: browsers do not show it as a page, and proxies do not keep it.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-cache",
}

#: Fields that change with the clock alone: they do not make an answer a new one.
_CLOCKS = frozenset({"at", "age_seconds", "last_word_seconds"})


class WithHeaders:
    """Adds the headers of every answer to those that lack them, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, add if scope["type"] == "http" else send)


class Prepared(NamedTuple):
    """A document as it is sent."""

    body: bytes
    tag: str


def prepared(document: dict[str, Any]) -> Prepared:
    """A document as it is sent. It may be sent to many."""
    return Prepared(encode(document), _tag(document))


def extended(document: Prepared, more: dict[str, Any]) -> Prepared:
    """A document that is not empty with further fields, which may differ from person to person."""
    words = encode(more)
    tag = hashlib.blake2b(document.tag.encode() + words, digest_size=12).hexdigest()
    return Prepared(document.body[:-1] + b"," + words[1:], f'W/"{tag}"')


def answer(request: Request, document: dict[str, Any] | Prepared, *, status: int = 200) -> Response:
    """A document as JSON; 304 without a body where the browser has it already.

    Numbers that are not finite are the texts `NaN`, `Infinity` and `-Infinity`, which JSON has no numbers for.
    """
    body, tag = document if isinstance(document, Prepared) else prepared(document)
    headers = {"ETag": tag}
    if status == 200 and tag in {one.strip() for one in request.headers.get("if-none-match", "").split(",")}:
        return Response(status_code=304, headers=headers)
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def encode(document: Any) -> bytes:
    """JSON in UTF-8, without spaces."""
    try:
        text = json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(plain(document), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace")  # a lone surrogate of a hostile name has no form in UTF-8


def plain(value: Any) -> Any:
    """The same value with texts for numbers that are not finite."""
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _tag(document: dict[str, Any]) -> str:
    timeless = {key: _timeless(value) for key, value in document.items() if key not in _CLOCKS}
    return f'W/"{hashlib.blake2b(encode(timeless), digest_size=12).hexdigest()}"'


def _timeless(value: Any) -> Any:
    """Without the clocks of the document itself and of its parts one and two levels below."""
    if not isinstance(value, dict):
        return value
    return {
        key: {name: item for name, item in part.items() if name not in ("age_seconds",)}
        if isinstance(part, dict)
        else part
        for key, part in value.items()
        if key not in _CLOCKS
    }
