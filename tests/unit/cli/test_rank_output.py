"""Output is read in whole lines at a bounded price, and shown where nothing waits for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from airflow_elastic.adapters.records.rank_output import Output, ends_of
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Entry, Store
from airflow_elastic.cli.console import QuietConsole
from airflow_elastic.cli.drive import printer as module
from airflow_elastic.cli.drive.printer import Printer
from airflow_elastic.cli.rank_output import Tail, find_logs
from airflow_elastic.spec import layout
from tests.support.machine.patience import PATIENCE_SECONDS

KEY = layout.attempt_logs(1) + layout.rank_log(1, 0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def news(output: Output, **options: int | None) -> list[str]:
    return [line for lines in output.news(output.parts(), **options) for line in lines]


def shown(line: bytes) -> str:
    """As a terminal would: progress bars go back to the beginning of their line."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


class InMemory:
    """As much of a store as output needs, with a limit of our own on what is read at once."""

    uri = "memory"

    def __init__(self, limit: int) -> None:
        self.objects: dict[str, bytes] = {}
        self.limit = limit

    def list(self, prefix: str) -> list[Entry]:
        return [Entry(k, len(v)) for k, v in sorted(self.objects.items()) if k.startswith(prefix)]

    def read_from(self, key: str, start: int, limit: int) -> bytes:
        return self.objects.get(key, b"")[start : start + min(limit, self.limit)]


@given(
    pieces=st.lists(
        st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\xc3\xa4", b"\xff"])).map(b"".join)
    ),
    parts=st.integers(1, 3),
    limit=st.integers(1, 9),
)
def test_lines_come_once_and_whole_however_they_are_written(
    pieces: list[bytes], parts: int, limit: int
) -> None:
    memory = InMemory(limit)
    output, told, written = Output(memory, KEY), list[str](), b""  # type: ignore[arg-type]
    for number, piece in enumerate(pieces):
        key = layout.log_part(KEY, number * parts // len(pieces))
        memory.objects[key] = memory.objects.get(key, b"") + piece
        written += piece
        told += news(output)
        assert written[output.at :].count(b"\n") == 0
        assert output.at == 0 or written[output.at - 1 : output.at] == b"\n"
    *whole, rest = written.split(b"\n")
    assert told == [shown(line) for line in whole]
    assert output.rest() == ([shown(rest)] if shown(rest) else [])


def test_a_line_without_an_end_takes_no_memory_and_what_is_left_out_is_said(store: Store) -> None:
    output = Output(store, KEY, longest=10)
    path = store.local_path(KEY)
    assert path is not None
    path.parent.mkdir(parents=True)
    with path.open("wb", buffering=0) as file:
        for _ in range(8):
            file.write(b"x" * (1 << 20))
            assert news(output) == []
            assert len(output._line) == 10
        file.write(b"\nshort\n")
    assert news(output) == ["xxxxxxxxxx… (8.4 MB more of this line)", "short"]


def test_what_is_far_behind_is_left_out_and_said(store: Store) -> None:
    store.put(KEY, b"".join(b"line %06d\n" % n for n in range(100_000)))
    output = Output(store, KEY)
    told = news(output, behind=120_000)
    assert told[0] == f"(1.2 MB left out here: the whole log is in {store.uri}/{KEY})"
    assert told[-1] == "line 099999"
    assert told[1:] == [f"line {n:06}" for n in range(100_000 - len(told) + 1, 100_000)]
    assert len(told) < 1_300
    assert news(output) == []


def test_of_many_lines_both_ends_are_told() -> None:
    batches = [[str(n) for n in range(i, i + 7)] for i in range(0, 70, 7)]
    assert ends_of(batches, 5, "there") == ["0", "1", "(65 more lines are in there)", "67", "68", "69"]
    assert ends_of(batches, 70, "there") == [str(n) for n in range(70)]
    assert ends_of([], 5, "there") == []


def test_parts_are_one_output(store: Store) -> None:
    store.put(layout.log_part(KEY, 0), b"one\ntw")
    store.put(layout.log_part(KEY, 1), b"o\nthree")
    assert [log.key for log in find_logs(store)] == [KEY]
    tail = Tail(store, rank=0)
    assert [lines for _, lines in tail.news(last=True)] == [["one"], ["two"], ["three"]]
    store.put(layout.log_part(KEY, 1), b"o\nthree\nfour\n")
    assert [lines for _, lines in tail.news()] == [["", "four"]]


def test_a_reader_that_stops_reading_holds_up_nobody(store: Store) -> None:
    """A terminal that is held (Ctrl-S), a pager that is not scrolled: the pipe is full, and stays so."""
    store.put(KEY, b"line\n" * 100_000)
    reading, writing = os.pipe()
    with open(writing, "w") as file:
        showing = Printer(QuietConsole(file=file), Tail(store, rank=0), lambda: "")
        showing.start()
        for number in range(2_000):
            showing.tell(Text(f"event {number}"))
        showing.end(0.1)
        assert showing._thread.is_alive()
        read = threading.Thread(target=_drain, args=(reading,))
        read.start()
        showing.end(PATIENCE_SECONDS)
        assert not showing._thread.is_alive()
    read.join()


def _drain(descriptor: int) -> None:
    with open(descriptor, "rb") as file:
        while file.read(1 << 16):
            pass


def test_what_was_printed_last_is_shown(store: Store) -> None:
    file = StringIO()
    showing = Printer(QuietConsole(file=file), Tail(store, rank=0), lambda: "")
    showing.tell(Text("before"))
    showing.start()
    store.put(KEY, b"one\n" + b"x\n" * 200_000 + b"two")
    showing.tell(Text("within"))
    showing.end()
    showing.tell(Text("after"))
    lines = file.getvalue().splitlines()
    assert lines[0] == "before"
    assert lines[-2:] == ["rank 0 | two", "after"]
    assert lines.count("rank 0 | x") == 200_000


def test_on_a_terminal_lines_are_few(store: Store) -> None:
    file = StringIO()
    store.put(KEY, b"x\n" * 200_000)
    showing = Printer(QuietConsole(file=file, force_terminal=True), Tail(store, rank=0), lambda: "lives")
    showing.start()
    showing.end()
    assert file.getvalue().count("\n") < 500
    assert f"more lines are in {store.uri}/{KEY}" in file.getvalue().replace("\n", "")


def test_lines_that_nobody_takes_are_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAITING_LINES", 3)
    file = StringIO()
    showing = Printer(QuietConsole(file=file), None, lambda: "")
    monkeypatch.setattr(showing._thread, "is_alive", lambda: True)  # it is at work, and the terminal is held
    for number in range(5):
        showing.tell(Text(str(number)))
    monkeypatch.undo()
    showing.end()
    assert file.getvalue().splitlines() == [
        "(2 lines left out here: look with `airflow-elastic events`)",
        *("2", "3", "4"),
    ]


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "showing"]
