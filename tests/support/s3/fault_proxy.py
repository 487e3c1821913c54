"""A proxy that makes a good S3 server bad: `fault_proxy.py HOST:PORT UPSTREAM_HOST:PORT`.

Rules are a JSON list, put to /-/rules and replaced as a whole; the first one that fits a request counts:

    [{"do": "reject", "method": "PUT", "path": "journal/", "rate": 0.3, "count": 2}]

"do":  reject  answer with "status" (default 503); the request never comes to the server
       late    the server carries the request out, the client gets "status" (default 503)
       lost    the server carries it out, and the connection ends without an answer
       hang    nobody carries it out, and nobody answers until the client has gone away
       silent  the server carries it out, and nobody answers until the client has gone away
       choke   no more than "bytes" (default 64 KiB) of what the client sends are taken, until it has gone away
       cut     the answer ends after "bytes" of its body (default: half), and with it the connection
       stall   the answer stops there, and the connection stays
       delay   wait "seconds" (default 1), then go on
       slow    both bodies come through at "bytes" a second (default 1 MiB)
"method", "path" (a regular expression, looked for in path and query), "rate" (of 1, default 1) and "count" (at most)
say which requests. Signatures hold: the Host header goes through as it is.
"""

from __future__ import annotations

import http.client
import http.server
import json
import random
import re
import select
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

_CODES = {500: "InternalError", 503: "SlowDown"}
_PER_HOP = {"connection", "transfer-encoding", "keep-alive", "expect", "content-length"}
_PATIENCE_S = 60
_TICK_S = 0.05

_rules: list[dict[str, Any]] = []
_lock = threading.Lock()


def _rule(method: str, path: str) -> dict[str, Any]:
    with _lock:
        for rule in _rules:
            fits = rule.get("method", method) == method and re.search(rule.get("path", ""), path)
            if fits and rule["hits"] < rule.get("count", 1e9) and random.random() < rule.get("rate", 1):
                rule["hits"] += 1
                return rule
    return {"do": None}


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_any(self) -> None:
        if self.path == "/-/rules":
            self._change_rules()
            return
        rule = _rule(self.command, self.path)
        do = rule["do"]
        if do == "choke":
            self.rfile.read(min(int(self.headers.get("Content-Length") or 0), rule.get("bytes", 1 << 16)))
            self._until_gone()
            return
        body = self._body(rule.get("bytes", 1 << 20) if do == "slow" else None)
        if do == "reject":
            self._refuse(rule)
        elif do == "hang":
            self._until_gone()
        else:
            if do == "delay":
                time.sleep(rule.get("seconds", 1))
            try:
                status, headers, data = self._ask(body)
            except OSError as error:
                self._answer(502, (), str(error).encode())
                return
            self._hand_on(rule, status, headers, data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

    def _hand_on(self, rule: dict[str, Any], status: int, headers: Any, data: bytes) -> None:
        length = int(dict(headers).get("Content-Length") or 0) if self.command == "HEAD" else len(data)
        match rule["do"]:
            case "late":
                self._refuse(rule)
            case "lost":
                self.close_connection = True
            case "silent":
                self._until_gone()
            case "cut" | "stall":
                self._answer(status, headers, data[: rule.get("bytes", length // 2)], length)
                if rule["do"] == "stall":
                    self._until_gone()
                self.close_connection = True
            case "slow":
                self._answer(status, headers, data, length, rule.get("bytes", 1 << 20))
            case _:
                self._answer(status, headers, data, length)

    def _change_rules(self) -> None:
        body = self._body(None)
        with _lock:
            if self.command == "PUT":
                _rules[:] = [dict(rule, hits=0) for rule in json.loads(body)]
            told = json.dumps(_rules).encode()
        self._answer(200, (), told)

    def _body(self, pace: int | None) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(parts)
        left, taken = int(self.headers.get("Content-Length") or 0), bytearray()
        while left:
            some = self.rfile.read(left if pace is None else min(left, max(1, int(pace * _TICK_S))))
            if not some:
                raise ConnectionError("the client has gone away")
            taken += some
            left -= len(some)
            if pace is not None:
                time.sleep(_TICK_S)
        return bytes(taken)

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection(*self.server.upstream, timeout=_PATIENCE_S)  # type: ignore[attr-defined]
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _PER_HOP:
                    upstream.putheader(name, value)
            upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body)
            answer = upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            upstream.close()

    def _refuse(self, rule: dict[str, Any]) -> None:
        status = rule.get("status", 503)
        self._answer(
            status,
            [("Content-Type", "application/xml")],
            f"<?xml version='1.0'?><Error><Code>{_CODES[status]}</Code></Error>".encode(),
        )

    def _answer(
        self,
        status: int,
        headers: Iterable[tuple[str, str]],
        data: bytes,
        length: int | None = None,
        pace: int | None = None,
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _PER_HOP:
                self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        at_once = len(data) if pace is None else max(1, int(pace * _TICK_S))
        for begin in range(0, len(data), max(1, at_once)):
            self.wfile.write(data[begin : begin + at_once])
            if pace is not None:
                time.sleep(_TICK_S)

    def _until_gone(self) -> None:
        """Say nothing until the client ends the connection."""
        self.close_connection = True
        poll = select.poll()  # of its end alone: there may be more of what it has sent
        poll.register(self.connection, select.POLLRDHUP)
        poll.poll(_PATIENCE_S * 1000)

    def log_message(self, *args: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    """Clients do go away: that is nothing to tell."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, listen: tuple[str, int], upstream: tuple[str, int]) -> None:
        super().__init__(listen, Handler)
        self.upstream = upstream

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)  # or a small request waits for seconds beside uploads on a busy machine
    Server(_address(sys.argv[1]), _address(sys.argv[2])).serve_forever()
