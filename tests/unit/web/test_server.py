"""The program `airflow-elastic ui` itself, as a person starts it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from click.testing import CliRunner

from airflow_elastic.cli.inspect.ui import VARIABLE, ui
from airflow_elastic.spec.errors import InvalidInput
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.runs.watched import submitted, trained, write_run


@contextmanager
def served(root: Path, *options: str, **variables: str) -> Iterator[str]:
    """The address that the program prints."""
    with subprocess.Popen(
        [sys.executable, "-m", "airflow_elastic.cli", "ui", str(root), "--no-browser", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "PYTHONUNBUFFERED": "1", **variables},
    ) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        try:
            yield line.rstrip().rpartition(" ")[2]
        finally:
            running.send_signal(signal.SIGINT)
            rest = running.stdout.read()
            running.wait(PATIENCE_SECONDS)
        assert "Traceback" not in rest, rest


def test_the_printed_address_opens_the_pages_and_only_here(tmp_path: Path) -> None:
    write_run(tmp_path / "one", submitted(), progress=trained())
    with served(tmp_path, "--port", "0") as address:
        parts = urlsplit(address)
        assert parts.hostname == "127.0.0.1"
        (token,) = parse_qs(parts.query)["token"]
        assert len(token) >= 32
        base = f"http://{parts.netloc}"
        assert httpx.get(f"{base}/api/runs").status_code == 401
        with httpx.Client(base_url=base) as browser:
            assert browser.get(address).status_code == 303
            answer = browser.get("/api/runs", headers={"Accept-Encoding": "gzip"})
            assert [run["name"] for run in answer.json()["runs"]] == ["run"]
        others = [info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
        for other in {str(host) for host in others} - {"127.0.0.1", "127.0.1.1"}:
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"http://{other}:{parts.port}/", timeout=5)
        with served(tmp_path, "--port", "0") as second:
            assert second != address
            assert httpx.get(second).status_code == 303
        taken = CliRunner().invoke(ui, [str(tmp_path), "--port", str(parts.port), "--no-browser"])
        assert isinstance(taken.exception, InvalidInput)
        assert f"port {parts.port} cannot be used" in str(taken.exception)


def test_a_token_of_ones_own_stays(tmp_path: Path) -> None:
    token = "a" * 20
    with served(tmp_path, "--port", "0", **{VARIABLE: token}) as address:
        base = address.partition("/?")[0]
        answer = httpx.get(f"{base}/metrics", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200
    short = CliRunner().invoke(ui, [str(tmp_path), "--no-browser"], env={VARIABLE: "short"})
    assert "at least 16" in str(short.exception)


def test_a_root_that_cannot_be_one(tmp_path: Path) -> None:
    wrong = CliRunner().invoke(ui, ["ftp://x/y", "--no-browser", "--port", "0"])
    assert isinstance(wrong.exception, InvalidInput)
