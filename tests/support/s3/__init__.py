"""Real S3 servers for tests, and proxies that make them worse: context managers, for any suite's fixtures."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.storage.open import open_store
from tests.support.machine.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from airflow_elastic.adapters.storage.store import Store

ENDPOINT = "ELASTIC_TEST_S3_ENDPOINT"  # of a server that runs already; AWS_* give the credentials


@dataclass(frozen=True)
class S3Server:
    """A server and how to get at it: `env` is what a process needs to use it, the endpoint included."""

    endpoint_url: str
    env: dict[str, str]
    kind: str  # "moto", or "given" where ELASTIC_TEST_S3_ENDPOINT named it
    bucket: str = field(default_factory=lambda: f"elastic-{secrets.token_hex(6)}")

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return self.endpoint_url.partition("//")[2].rstrip("/")

    def session(self) -> Any:
        """A boto3 session that knows this server: what `open_store` takes as its `s3_client_factory`."""
        return _Session(self)

    def client(self) -> Any:
        """An S3 client with boto3's defaults."""
        return self.session().client("s3")

    def store(self, prefix: str | None = None) -> Store:
        """A store in this server's bucket, below a new prefix unless one is given."""
        prefix = f"run {secrets.token_hex(6)}" if prefix is None else prefix
        return open_store(f"s3://{self.bucket}/{prefix}", s3_client_factory=self.session())

    def behind(self, address: str) -> S3Server:
        """The same server, seen through a proxy at HOST:PORT."""
        url = f"http://{address}"
        return S3Server(url, {**self.env, "AWS_ENDPOINT_URL": url}, self.kind, self.bucket)


class _Session:
    """A session whose clients go to one server, whatever this process's environment says."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self.region_name = server.env["AWS_DEFAULT_REGION"]

    def client(self, service_name: str, **options: Any) -> Any:
        import boto3

        env = self._server.env
        session = boto3.session.Session(
            aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
            aws_session_token=env.get("AWS_SESSION_TOKEN"),
            region_name=self.region_name,
        )
        return session.client(service_name, endpoint_url=self._server.endpoint_url, **options)


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """The server that ELASTIC_TEST_S3_ENDPOINT names, else a moto server of our own; with an empty bucket."""
    if endpoint := os.environ.get(ENDPOINT):
        env = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": os.environ.get("AWS_ACCESS_KEY_ID", "test"),
            "AWS_SECRET_ACCESS_KEY": os.environ.get("AWS_SECRET_ACCESS_KEY", "testtest"),
            "AWS_DEFAULT_REGION": os.environ.get("AWS_DEFAULT_REGION")
            or os.environ.get("AWS_REGION", "us-east-1"),
        }
        with _bucket(S3Server(endpoint, env, "given")) as server:
            yield server
    else:
        with moto_server() as server:
            yield server


@contextlib.contextmanager
def moto_server() -> Iterator[S3Server]:
    """A moto server in a process of its own: it keeps everything in memory and checks no signatures."""
    address = f"127.0.0.1:{free_port()}"
    program = Path(__file__).parent / "moto_one_at_a_time.py"
    env = {
        "AWS_ENDPOINT_URL": f"http://{address}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "testtest",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with (
        _process(address, sys.executable, str(program), address.rpartition(":")[2]),
        _bucket(S3Server(f"http://{address}", env, "moto")) as server,
    ):
        yield server


@dataclass(frozen=True)
class FaultProxy:
    """A server seen through the fault proxy; `rules` takes what the first lines of `fault_proxy.py` describe."""

    server: S3Server
    injected: Counter[str] = field(default_factory=Counter)  # by rules that have been replaced since

    def rules(self, *rules: dict[str, Any]) -> None:
        for rule in self._ask("GET"):
            self.injected[f"{rule['do']} {rule.get('status', '')}".strip()] += rule["hits"]
        self._ask("PUT", json.dumps(rules).encode())

    def hits(self) -> list[int]:
        """How often each rule has matched so far."""
        return [rule["hits"] for rule in self._ask("GET")]

    def _ask(self, method: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(f"{self.server.endpoint_url}/-/rules", data=body, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return json.load(answer)


@contextlib.contextmanager
def fault_proxy(server: S3Server) -> Iterator[FaultProxy]:
    """`fault_proxy.py` in front of `server`."""
    address, program = f"127.0.0.1:{free_port()}", Path(__file__).parent / "fault_proxy.py"
    with _process(address, sys.executable, str(program), address, server.address):
        yield FaultProxy(server.behind(address))


@contextlib.contextmanager
def lesser_proxy(
    server: S3Server,
    *,
    strip: tuple[str, ...] = (),
    refuse: Callable[[str, str, http.client.HTTPMessage], tuple[int, str] | None] = lambda *_: None,
) -> Iterator[S3Server]:
    """`server` as one that can do less.

    Args:
        server: the server behind. botocore signs all its headers, so to strip some take moto's, which does
            not check signatures.
        strip: request headers, in lower case, that the server behind never sees: without "if-none-match" it
            ignores conditional writes, as rclone's server does.
        refuse: is given method, path and headers of each request; a status and an S3 error code that it
            returns are the answer, and the server behind never sees the request.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if refusal := refuse(self.command, self.path, self.headers):
                self.answer(refusal[0], f"<Error><Code>{refusal[1]}</Code></Error>".encode())
                return
            upstream = http.client.HTTPConnection(server.address, timeout=PATIENCE_SECONDS)
            with contextlib.closing(upstream):
                upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in {*strip, "connection", "expect"}:
                        upstream.putheader(name, value)
                upstream.endheaders(body)
                answer = upstream.getresponse()
                data = answer.read()
            self.answer(answer.status, data, answer.getheaders(), answer.getheader("Content-Length"))

        def answer(
            self, status: int, data: bytes, headers: Iterable[tuple[str, str]] = (), length: str | None = None
        ) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", (length or "0") if self.command == "HEAD" else str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        proxy.daemon_threads = True
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.behind(f"127.0.0.1:{proxy.server_address[1]}")
        finally:
            proxy.shutdown()
            thread.join()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _process(address: str, *command: str) -> Iterator[None]:
    """A server process from when it answers HTTP at `address` until the end of the block."""
    with tempfile.TemporaryFile() as said:  # not a pipe, which would fill up and stop it
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        try:
            give_up = time.monotonic() + PATIENCE_SECONDS
            while not _answers(address):
                if process.poll() is not None or time.monotonic() > give_up:
                    said.seek(0)
                    text = said.read().decode(errors="replace")[-2000:]
                    raise RuntimeError(f"{command[0]} did not come up at {address}: {text}")
                time.sleep(0.02)
            yield
        finally:
            process.kill()
            process.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@contextlib.contextmanager
def _bucket(server: S3Server) -> Iterator[S3Server]:
    client = server.client()
    client.create_bucket(Bucket=server.bucket)
    try:
        yield server
    finally:
        store = open_store(f"s3://{server.bucket}", s3_client_factory=server.session())
        store.delete(entry.key for entry in store.list())
        client.delete_bucket(Bucket=server.bucket)


def impatient(server: S3Server, *, attempts: int = 1, seconds: float | None = None) -> Any:
    """A client factory.

    Args:
        server: where its clients go.
        attempts: of each request. One: for failures that are to last.
        seconds: how long an answer, and a server that takes what is sent, are waited for. Default: as our clients do.
    """

    def make(config: Any) -> Any:
        from botocore.config import Config

        changes: dict[str, Any] = {"retries": {"mode": "standard", "total_max_attempts": attempts}}
        if seconds is not None:
            changes |= {"read_timeout": seconds, "connect_timeout": seconds}
        return server.session().client("s3", config=config.merge(Config(**changes)))

    return make
