"""Logs come to storage, and to a pod's own output, at a bounded price, and hold up nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_elastic.adapters.output import Output
from airflow_elastic.adapters.store import Entry
from airflow_elastic.runtime import echo, log_copies
from airflow_elastic.runtime.echo import Echo
from airflow_elastic.runtime.log_copies import LogCopies
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreError
from tests.support.patience import PATIENCE_SECONDS, until


class FarStore:
    """As much of a bucket as logs need."""

    uri = "s3://bucket/run"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.sent: list[int] = []
        self.open, self.asked, self.down = threading.Event(), threading.Event(), False
        self.open.set()

    def local_path(self, key: str) -> Path | None:
        return None

    def put(self, key: str, data: bytes) -> None:
        self.asked.set()
        assert self.open.wait(PATIENCE_SECONDS)
        if self.down:
            raise StoreError("down")
        self.objects[key] = data
        self.sent.append(len(data))

    def list(self, prefix: str) -> list[Entry]:
        return [Entry(k, len(v)) for k, v in sorted(self.objects.items()) if k.startswith(prefix)]

    def read_from(self, key: str, start: int, limit: int) -> bytes:
        return self.objects[key][start : start + limit]

    def text(self, attempt: int) -> str:
        output = Output(self, layout.attempt_logs(attempt) + "g01-rank-0.log")  # type: ignore[arg-type]
        return "".join(f"{line}\n" for lines in output.news(output.parts()) for line in lines)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(log_copies, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(log_copies, "PART_BYTES", 1000)
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    return SimpleNamespace(store=FarStore(), attempt=1, logs=tmp_path / "1")


def test_a_log_is_there_whole_and_only_its_newest_part_is_sent_again(node: Any) -> None:
    copies, path = LogCopies(node), node.logs / "g01-rank-0.log"
    lines = [f"line {n}\n" for n in range(1000)]
    copies.start()
    with path.open("w") as file:
        for line in lines:
            file.write(line)
            file.flush()
    copies.stop()
    assert node.store.text(1) == "".join(lines)
    assert {len(data) for data in list(node.store.objects.values())[:-1]} == {1000}
    assert max(node.store.sent) == 1000


def test_going_over_to_the_next_attempt_waits_for_no_log(node: Any, tmp_path: Path) -> None:
    node.store.open.clear()
    copies = LogCopies(node)
    (node.logs / "g01-rank-0.log").write_text("first\n" * 1000)
    copies.start()
    assert node.store.asked.wait(PATIENCE_SECONDS)
    copies.note()
    node.attempt, node.logs = 2, tmp_path / "2"
    (node.logs / "g01-rank-0.log").write_text("second\n")
    node.store.open.set()
    copies.stop()
    assert node.store.text(1) == "first\n" * 1000
    assert node.store.text(2) == "second\n"


def test_storage_that_was_out_of_reach_gets_it_later(node: Any) -> None:
    node.store.down = True
    copies = LogCopies(node)
    (node.logs / "g01-rank-0.log").write_text("first\n" * 1000)
    copies.start()
    assert node.store.asked.wait(PATIENCE_SECONDS)
    node.store.down = False
    copies.stop()
    assert node.store.text(1) == "first\n" * 1000


def test_a_pods_own_output_leaves_out_what_it_cannot_keep_up_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(echo, "_BEHIND_BYTES", 80_000)
    path = tmp_path / "one.log"
    node: Any = SimpleNamespace(record=SimpleNamespace(run_uri="s3://b/r"), rank_logs=lambda: [path])
    path.write_bytes(b"first\n")
    copying = Echo(node)
    copying._copy()
    with path.open("ab") as file:
        file.write(b"".join(b"%09d\n" % n for n in range(500_000)))
    copying._copy()
    copying._copy()
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert lines[0] == "first"
    assert lines[2] == "airflow-elastic: 5 MB are left out here: all of it is in s3://b/r/logs"
    assert lines[-1] == "000499999"
    assert [int(line) for line in lines[3:]] == list(range(500_000 - len(lines[3:]), 500_000))
    assert len(lines) < 1_100


def test_near_storage_needs_no_copies(node: Any, tmp_path: Path) -> None:
    node.store.local_path = lambda key: tmp_path / key
    copies = LogCopies(node)
    copies.start()
    copies.note()
    copies.stop()
    until(lambda: not copies._thread.is_alive(), "no thread")
