"""Logs come to storage, and to a pod's own output, at a bounded price, and hold up nothing."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_elastic.adapters.records.job_files import Result
from airflow_elastic.adapters.records.rank_output import Output
from airflow_elastic.adapters.storage.store import Entry
from airflow_elastic.runtime.agent import agent
from airflow_elastic.runtime.agent.reporting import log_copies, stdout_copy
from airflow_elastic.runtime.agent.reporting.log_copies import LogCopies
from airflow_elastic.runtime.agent.reporting.stdout_copy import StdoutCopy
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreError
from tests.support.machine.patience import PATIENCE_SECONDS, until


class FarStore:
    """As much of a bucket as logs need."""

    uri = "s3://bucket/run"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.sent: list[int] = []
        self.open, self.asked, self.down = threading.Event(), threading.Event(), False
        self.refused: Callable[[bytes], bool] = lambda data: False
        self.open.set()

    def local_path(self, key: str) -> Path | None:
        return None

    def put(self, key: str, data: bytes) -> None:
        self.asked.set()
        assert self.open.wait(PATIENCE_SECONDS)
        if self.down or self.refused(data):
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
    monkeypatch.setattr(log_copies, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(log_copies, "PART_BYTES", 1000)
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    record = SimpleNamespace(spec=SimpleNamespace(health=SimpleNamespace(grace_seconds=PATIENCE_SECONDS)))
    return SimpleNamespace(
        store=FarStore(),
        attempt=1,
        logs=tmp_path / "1",
        record=record,
        stop_at=None,
        unattended=None,
        address="10.0.0.1",
    )


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


def test_storage_that_refuses_is_asked_again_after_a_while(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bytes] = []
    node.store.refused = lambda data: (tried.append(data), True)[1]
    copies, now = LogCopies(node), 1000.0
    monkeypatch.setattr(log_copies, "time", SimpleNamespace(monotonic=lambda: now, sleep=time.sleep))
    (node.logs / "g01-rank-0.log").write_text("first\n" * 1000)
    copies.note()
    for now in (1000.0, 1003.0, 1029.0, 1031.0, 1034.0, 1062.0):  # noqa: B007 - read by the clock
        copies._pass()
    assert len(tried) == 3
    node.store.refused = lambda data: False
    copies._pass(last=True)
    assert node.store.text(1) == "first\n" * 1000


def test_a_worker_that_ends_tries_until_all_is_copied(node: Any) -> None:
    refusals = iter([True] * 5)
    node.store.refused = lambda data: next(refusals, False)
    copies = LogCopies(node)
    (node.logs / "g01-rank-0.log").write_text("first\n" * 1000)
    (node.logs / "g01-rank-1.log").write_text("other\n")
    copies.end()
    copies.start()
    copies.stop()
    assert node.store.text(1) == "first\n" * 1000
    assert next(refusals, None) is None
    assert node.store.objects[layout.attempt_logs(1) + "g01-rank-1.log"] == b"other\n"


def test_what_could_not_be_copied_in_time_is_said_in_the_copy_and_in_the_workers_log(
    node: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_copies, "LOG_SECONDS", 0.1)
    node.store.refused = lambda data: b"\n5\n" in data or b"other" in data
    copies = LogCopies(node)
    (node.logs / "g01-rank-0.log").write_text("".join(f"{n}\n" * 500 for n in range(10)))  # a part each
    (node.logs / "g01-rank-1.log").write_text("other\n")
    copies.note()
    copies._pass()
    copies.start()
    copies.stop()
    lines = node.store.text(1).splitlines()
    assert lines[:2500] == [str(n) for n in range(5) for _ in range(500)]
    assert lines[2500:] == ["", "(5,000 bytes of this log could not be copied: down)"]
    other = node.store.objects[layout.attempt_logs(1) + "g01-rank-1.log"]
    assert other == b"\n(6 bytes of this log could not be copied: down)\n"
    told = [record.getMessage() for record in caplog.records if "could not be copied:" in record.getMessage()]
    assert told == [
        f"{node.logs}/g01-rank-0.log: 5,000 bytes of this log could not be copied: down",
        f"{node.logs}/g01-rank-1.log: 6 bytes of this log could not be copied: down",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_a_pod_that_is_told_to_end_copies_within_its_grace(
    node: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """And says what is not there before the grace is over."""
    node.record.spec.health.grace_seconds = 0.1 + log_copies._NOTE_SECONDS
    node.stop_at = time.monotonic()
    assert LogCopies(node)._seconds_left() < 0.1
    node.unattended = "nobody is there"  # it is not told to end by the cluster
    assert LogCopies(node)._seconds_left() > log_copies.LOG_SECONDS - PATIENCE_SECONDS
    node.unattended = None
    node.store.refused = lambda data: data == b"first\n"
    copies = LogCopies(node)
    (node.logs / "g01-rank-0.log").write_text("first\n")
    copies.start()
    copies.stop()
    assert node.store.text(1) == "\n(6 bytes of this log could not be copied: down)\n"


def test_storage_that_does_not_answer_holds_up_the_end_no_longer(
    node: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_copies, "LOG_SECONDS", 0.05)
    monkeypatch.setattr(log_copies, "_NOTE_SECONDS", 0.05)
    node.store.open.clear()
    copies = LogCopies(node)
    (node.logs / "g01-rank-0.log").write_text("first\n")
    copies.start()
    copies.stop()
    assert [record.getMessage() for record in caplog.records] == [
        f"{node.logs}/g01-rank-0.log: 6 bytes of this log could not be copied: storage does not answer"
    ]
    node.store.open.set()
    until(lambda: not copies._thread.is_alive(), "the thread's end")


def test_parts_that_are_full_wait_for_no_share_of_the_time(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that prints faster than a tenth of what the network takes would never be caught up with."""
    monkeypatch.setattr(log_copies, "_SHARE", 1e-12)
    copies, path = LogCopies(node), node.logs / "g01-rank-0.log"
    path.write_bytes(b"0" * 1500)
    copies.note()
    copies._pass()
    with path.open("ab") as file:
        file.write(b"1" * 3000)
    copies._pass()
    copies._pass()
    assert [len(data) for data in node.store.objects.values()] == [1000, 1000, 1000, 1000]
    assert node.store.sent == [1000, 500, 1000, 1000, 1000]


def test_a_log_that_cannot_be_read_for_once_ends_no_copying(node: Any) -> None:
    copies, gone = LogCopies(node), node.logs / "g01-rank-1.log"
    gone.symlink_to(node.logs / "nowhere")
    (node.logs / "g01-rank-0.log").write_text("first\n")
    copies.start()
    until(lambda: node.store.sent, "the other one's copy")
    until(lambda: copies.busy, "the thread")
    gone.unlink()
    copies.stop()
    assert node.store.text(1) == "first\n"


def test_an_end_is_told_before_its_logs_are_copied(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left to do then holds up nobody who decides."""
    node.record.spec.launcher, node.record.spec.working_dir = "python", None
    node.record.spec.checkpoint = SimpleNamespace(buddies=False, disk=None)
    (node.logs / "g01-rank-0.log").write_text("first\n" * 1000)
    node.store.open.clear()
    order: list[str] = []

    def service(name: str) -> Any:
        return SimpleNamespace(start=lambda: None, flush=lambda: None, **{name: lambda: order.append(name)})

    def ended() -> None:
        order.append(f"ended, {len(node.store.sent)} parts copied")
        node.store.open.set()

    monkeypatch.setattr(agent, "StorageWriter", lambda *_: service("stop"))
    monkeypatch.setattr(agent, "run_command", lambda _: Result("failed", 1.0))
    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        agent.run_worker(
            *(node, service("end"), service("stop")), lambda result: order.append(result.outcome), ended
        )
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    assert order == ["failed", "end", "stop", "stop", "ended, 0 parts copied"]
    assert node.store.text(1) == "first\n" * 1000


def test_a_pods_own_output_leaves_out_what_it_cannot_keep_up_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(stdout_copy, "_BEHIND_BYTES", 80_000)
    path = tmp_path / "one.log"
    node: Any = SimpleNamespace(record=SimpleNamespace(run_uri="s3://b/r"), rank_logs=lambda: [path])
    path.write_bytes(b"first\n")
    copying = StdoutCopy(node)
    copying._copy()
    with path.open("ab") as file:
        file.write(b"".join(b"%09d\n" % n for n in range(500_000)))
    copying._copy()
    copying._copy()
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert lines[0] == "first"
    assert lines[2] == "airflow-elastic: 5 MB are left out here; the complete log is in s3://b/r/logs"
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


def test_a_pods_own_output_has_the_end_of_ranks_whose_place_others_have_taken(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    paths = [tmp_path / "g01.log", tmp_path / "g02.log"]
    node: Any = SimpleNamespace(rank_logs=lambda: [paths[0]])
    copying = StdoutCopy(node)
    paths[0].write_bytes(b"first\n")
    copying._copy()
    with paths[0].open("ab") as file:
        file.write(b"its end\n")
    paths[1].write_bytes(b"second\n")
    node.rank_logs = lambda: [paths[1]]
    copying._copy()
    with paths[0].open("ab") as file:
        file.write(b"nobody is there any more that prints\n")
    copying._copy()
    assert capfdbinary.readouterr().out == b"first\nits end\nsecond\n"
