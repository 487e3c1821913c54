"""Shares by compare-and-set: several processes at once, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from airflow_elastic.brain import allocation, memory
from airflow_elastic.brain.allocation import CLAIM_SECONDS, RENEW_SECONDS, Allocation, Entry
from airflow_elastic.brain.database import Database
from airflow_elastic.brain.errors import BrainUnreachable
from airflow_elastic.brain.learn import learn
from airflow_elastic.cli.main import cli
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.unit.brain.conftest import RUNS

#: Adds its name to the row so many times, each time by compare-and-set.
ADDER = """
import sys
from airflow_elastic.brain import allocation
from airflow_elastic.brain.allocation import Allocation, Entry
from airflow_elastic.brain.database import Database
name, count = sys.argv[1], int(sys.argv[2])
database = Database()
for i in range(count):
    entry = Entry((1, 2), 1, 5.0, 5.0, free=3)
    allocation.change(database, "pool", 5.0, lambda found: found.with_entry(f"{name}-{i}", entry))
"""

#: Reads the row, and is killed before it writes.
KILLED = """
import os, signal
from airflow_elastic.brain import allocation
from airflow_elastic.brain.database import Database
def die(found):
    os.kill(os.getpid(), signal.SIGKILL)
allocation.change(Database(), "pool", 6.0, die)
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def both(request: pytest.FixtureRequest, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database of each kind."""
    where = url if request.param == "sqlite" else request.getfixturevalue("server")
    monkeypatch.setenv("AIRFLOW_ELASTIC_BRAIN", where)
    database = Database()
    memory.forget(database, None)
    allocation.change(database, "pool", 0.0, lambda _: Allocation())
    yield database
    database.close()


def entry(workers: int = 1, at: float = 5.0, **changes: object) -> Entry:
    return Entry(**{"sizes": (1, 2, 3, 4), "workers": workers, "at": at, "since": at, **changes})  # type: ignore[arg-type]


def started(code: str, *words: object) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], env=environment)


def test_no_process_undoes_the_change_of_another(both: Database) -> None:
    before = allocation.read(both, "pool")[0]
    processes = [started(ADDER, name, 15) for name in ("one", "two")]
    assert [one.wait(PATIENCE_SECONDS) for one in processes] == [0, 0]
    version, found = allocation.read(both, "pool")
    assert set(found.entries) == {f"{name}-{i}" for name in ("one", "two") for i in range(15)}
    assert version == before + 30  # each of them made each of its changes once


def test_a_process_that_dies_between_reading_and_writing_loses_nothing(both: Database) -> None:
    allocation.ask(both, "pool", "run", entry())
    before = allocation.read(both, "pool")
    assert started(KILLED).wait(PATIENCE_SECONDS) == -9
    assert allocation.read(both, "pool") == before
    allocation.ask(both, "pool", "other", entry(at=6.0))
    assert set(allocation.read(both, "pool")[1].entries) == {"run", "other"}


def test_a_version_that_is_not_the_newest_changes_nothing(both: Database) -> None:
    allocation.ask(both, "pool", "run", entry())
    version, found = allocation.read(both, "pool")
    newer = found.with_entry("other", entry())
    assert allocation.write(both, "pool", version, newer, 6.0)
    assert not allocation.write(both, "pool", version, Allocation(), 7.0)
    assert allocation.read(both, "pool") == (version + 1, newer)
    assert allocation.write(both, "new", 0, newer, 6.0)
    assert not allocation.write(both, "new", 0, Allocation(), 6.0)
    allocation.change(both, "new", 7.0, lambda _: Allocation())


def test_learning_is_the_same_on_both(both: Database, runs: Path) -> None:
    learn(both, str(runs))
    before = memory.known(both)
    assert len(before) == len(RUNS)
    learn(both, str(runs))
    assert memory.known(both) == before
    processes = [
        started(
            "import sys; from airflow_elastic.cli.main import main; main(['brain', 'learn', sys.argv[1]])",
            runs,
        )
        for _ in range(2)
    ]
    assert [one.wait(PATIENCE_SECONDS) for one in processes] == [0, 0]
    assert memory.known(both) == before
    assert memory.forget(both, str(runs / "own")) == 1
    assert len(memory.known(both)) == len(RUNS) - 1


def test_two_runs_share_by_priority_and_give_back(database: Database) -> None:
    low = allocation.ask(database, "pool", "low", entry(workers=4, free=0))
    assert low is not None
    assert low.workers == 4
    high = allocation.ask(database, "pool", "high", entry(workers=0, at=6.0, free=0, priority=5))
    assert high is not None
    assert high.workers == 3
    low = allocation.ask(database, "pool", "low", entry(workers=4, at=7.0, free=0))
    assert low is not None
    assert low.workers == 1
    assert "1 other run with 4 units for all, 1 of them of a higher priority" in low.reason
    allocation.leave(database, "pool", ["high"], 8.0)
    low = allocation.ask(database, "pool", "low", entry(workers=1, at=9.0, free=3))
    assert low is not None
    assert low.workers == 4


def test_shares_are_shown(database: Database) -> None:
    def ask(*words: str) -> str:
        return CliRunner().invoke(cli, ["brain", "shares", *words], standalone_mode=False).output

    assert "no run shares a capacity" in ask()
    now = time.time()
    allocation.ask(database, "gpus", "/runs/low", entry(workers=4, at=now, free=0))
    allocation.ask(database, "gpus", "/runs/high", entry(workers=0, at=now, free=0, priority=5))
    allocation.ask(database, "other", "/runs/alone", entry(at=now))
    found = json.loads(ask("--json"))["shares"]
    assert {one["run"]: (one["workers"], one["share"]) for one in found} == {
        "/runs/high": (0, 3),
        "/runs/low": (4, 1),
        "/runs/alone": (1, None),
    }
    assert "of a higher priority" in ask()


def test_an_unknown_capacity_is_not_shared(database: Database) -> None:
    assert allocation.ask(database, "pool", "run", entry()) is None


def test_a_claim_that_nobody_renews_does_not_count(database: Database) -> None:
    allocation.ask(database, "pool", "dead", entry(workers=4, free=0))
    alive = allocation.ask(database, "pool", "alive", entry(workers=1, at=6.0 + CLAIM_SECONDS, free=3))
    assert alive is not None
    assert alive.workers == 4
    assert set(allocation.read(database, "pool")[1].entries) == {"alive"}


def test_a_claim_that_says_nothing_new_is_not_written(database: Database) -> None:
    allocation.ask(database, "pool", "run", entry(free=1))
    version = allocation.read(database, "pool")[0]
    allocation.ask(database, "pool", "run", entry(at=6.0, free=1))
    assert allocation.read(database, "pool")[0] == version
    allocation.ask(database, "pool", "run", entry(at=6.0 + RENEW_SECONDS, free=1))
    assert allocation.read(database, "pool")[0] == version + 1
    assert allocation.read(database, "pool")[1].entries["run"].since == 5.0


def test_it_gives_up_where_others_win_each_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "write", lambda *_: False)
    with pytest.raises(BrainUnreachable, match="others have changed"):
        allocation.change(database, "pool", 5.0, lambda found: found.with_entry("run", entry()))
