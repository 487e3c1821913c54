"""Progress in the status of a TrainJob, posted to a small real server."""

from __future__ import annotations

import json
import logging
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.runtime.agent.reporting import trainer_status
from airflow_elastic.runtime.agent.reporting.trainer_status import TrainerStatus, also_to_trainer, status_of
from airflow_elastic.spec.status import Progress

HALF = Progress(
    attempt=1, at=1000.0, step=50, total_steps=100, loss=0.5, world_size=2, metrics={"x" * 65: 1.0}
)


@dataclass
class Server:
    """Trainer's, as far as it is asked."""

    env: dict[str, str]
    answer: int = 200
    seen: list[tuple[str, str | None, Any]] = field(default_factory=list)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    key, certificate, token = (tmp_path / name for name in ("key", "ca", "token"))
    words = f"req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 1 -subj /CN=localhost"
    made = ["openssl", *words.split(), "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(made, check=True, capture_output=True)
    token.write_text("first\n")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.seen.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(found.answer)
            self.end_headers()
            self.wfile.write(b"said")

        def log_message(self, *_: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("localhost", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listening.socket = context.wrap_socket(listening.socket, server_side=True)
    port = listening.socket.getsockname()[1]
    found = Server(
        {
            "KUBEFLOW_TRAINER_SERVER_URL": f"https://localhost:{port}/apis/namespaces/ns/trainjobs/tj/status",
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(certificate),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token),
        }
    )
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield found
    listening.shutdown()
    listening.server_close()


def test_progress_is_posted_with_a_token_that_is_read_anew(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_status, "EVERY_SECONDS", 0.0)
    tell = also_to_trainer(lambda last: HALF, server.env)
    assert tell(False) is HALF
    Path(server.env["KUBEFLOW_TRAINER_SERVER_TOKEN"]).write_text("second")
    tell(False)
    path, first, body = server.seen[0]
    assert (path, first, server.seen[1][1]) == (
        "/apis/namespaces/ns/trainjobs/tj/status",
        "Bearer first",
        "Bearer second",
    )
    assert body == {
        "trainerStatus": {
            "lastUpdatedTime": "1970-01-01T00:16:40Z",
            "progressPercentage": 50,
            "metrics": [
                {"name": "step", "value": "50"},
                {"name": "loss", "value": "0.5"},
                {"name": "world_size", "value": "2"},
                {"name": "samples_per_second", "value": "0"},
            ],
        }
    }


def test_it_is_posted_now_and_then_and_at_the_end(server: Server) -> None:
    tell = also_to_trainer(lambda last: HALF, server.env)
    for _ in range(5):
        tell(False)
    tell(True)
    assert len(server.seen) == 2


def test_a_refusal_is_logged_once_and_changes_nothing(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_status, "_PAUSE_SECONDS", 0.0)
    server.answer = 403
    tell = also_to_trainer(lambda last: HALF, server.env)
    with caplog.at_level(logging.WARNING):
        assert [tell(False), tell(False), tell(True)] == [HALF, HALF, HALF]
    assert [record.getMessage() for record in caplog.records] == [
        "the TrainJob's status does not show progress for now: HTTP 403: said"
    ]


@pytest.mark.parametrize("broken", ["CA_CERT", "TOKEN", "URL"])
def test_what_is_not_there_is_no_error(
    server: Server, broken: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    value = "http://localhost:1/" if broken == "URL" else str(tmp_path / "none")
    env = {**server.env, f"KUBEFLOW_TRAINER_SERVER_{broken}": value}
    with caplog.at_level(logging.WARNING):
        assert also_to_trainer(lambda last: HALF, env)(False) is HALF
    assert (len(caplog.records), server.seen) == (1, [])


def test_a_server_that_nobody_vouches_for_gets_no_token(server: Server) -> None:
    del server.env["KUBEFLOW_TRAINER_SERVER_CA_CERT"]
    also_to_trainer(lambda last: HALF, server.env)(False)
    assert server.seen == []


def test_without_a_server_nothing_is_added() -> None:
    def tell(last: bool) -> None:
        return None

    assert also_to_trainer(tell, {}) is tell


def test_the_time_that_is_left_follows_from_the_speed_since_the_first_words() -> None:
    assert status_of(HALF, (30, 990.0))["estimatedRemainingSeconds"] == 25
    assert "progressPercentage" not in status_of(Progress(1, 1.0, step=3), (3, 1.0))
    assert TrainerStatus("", "", "").post(HALF) is None
