"""The Brain as a controller asks it: it never raises, warns once, and shows no password."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.brain import memory
from airflow_elastic.brain.client import PAUSE_SECONDS, Ask, Memory
from airflow_elastic.brain.database import Database
from airflow_elastic.brain.memory import kept_proposals
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.scaling.observation import Speed
from airflow_elastic.testing.ports import free_port
from tests.unit.core.brain.test_proposals import fact, speeds, trains
from tests.unit.project.test_isolation import BLOCKER

CLUSTER = trains(brain="cluster")


def test_out_of_reach_is_nothing_and_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    client = Memory(f"postgresql://ada:secret@127.0.0.1:{free_port()}/brain", lambda: now[0])
    ask = Ask("pool", 1, 3)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert client.learnt(CLUSTER) == ()
            assert client.share("/runs/1", CLUSTER, ask) is None
            assert client.begin(CLUSTER) == (CLUSTER, ())
            client.leave("/runs/1", "pool")
            now[0] += PAUSE_SECONDS + 1
    client.close()
    (warning,) = [one.getMessage() for one in caplog.records if one.name == "airflow_elastic.brain.client"]
    assert "the memory of past runs is not used" in warning
    assert "127.0.0.1" in warning
    assert "secret" not in caplog.text


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Ours alone: other threads of the process may warn meanwhile."""
    return [one.getMessage() for one in caplog.records if one.name.startswith("airflow_elastic.brain")]


def test_a_server_that_goes_away_and_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The file of the database is out of reach for a while, as a server would be."""
    now, path = [0.0], tmp_path / "brain.db"
    client = Memory(f"sqlite:///{path}", lambda: now[0])
    ask = Ask("pool", 2, 3)
    first = client.share("/runs/1", CLUSTER, ask)
    assert first is not None
    content = path.read_bytes()
    with caplog.at_level(logging.WARNING):
        path.write_bytes(b"no database" * 1000)
        assert [client.share("/runs/1", CLUSTER, ask) for _ in range(3)] == [None, None, None]
        path.write_bytes(content)
        assert client.share("/runs/1", CLUSTER, ask) is None  # it is left alone for a while
        now[0] += PAUSE_SECONDS + 1
        assert client.share("/runs/1", CLUSTER, ask) == first
    assert len(warnings_of(caplog)) == 1
    client.close()


@pytest.mark.parametrize(
    "url", ["nonsense://ada:secret@host/brain", "ada:secret@host", "sqlite:////proc/no/brain.db"]
)
def test_a_wrong_url_stops_nothing(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert Memory(url).learnt(CLUSTER) == ()
    assert len(warnings_of(caplog)) == 1
    assert "secret" not in caplog.text


def test_without_its_packages_it_says_what_to_install() -> None:
    code = BLOCKER + (
        "from airflow_elastic.brain.client import Memory\n"
        "from airflow_elastic.spec.run import RunSpec\n"
        "assert Memory().learnt(RunSpec(('train.py',), brain='cluster')) == ()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "sqlalchemy,alembic", "airflow_elastic.cli.main"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'airflow-elastic[brain]'" in done.stderr


def test_a_new_run_starts_with_what_was_learnt(url: str, database: Database) -> None:
    known = fact(CLUSTER, speeds=speeds((1, 1.1), (2, 0.6), (4, 0.35)), longest_start_seconds=2000.0)
    memory.remember(database, known, 5.0)
    client = Memory()
    spec, taken = client.begin(CLUSTER)
    assert (spec.workers.count, spec.workers.at_least, spec.workers.at_most) == (8, 1, 16)
    assert spec.health.start_seconds == 6600.0
    assert [one.field for one in taken] == ["workers.count", "health.start_seconds"]
    for mode in ("manual", "single", None):
        assert client.begin(replace(CLUSTER, brain=mode)) == (replace(CLUSTER, brain=mode), ())
    assert client.learnt(CLUSTER) == known.speeds
    assert client.learnt(replace(CLUSTER, brain="manual")) == ()
    proposed = client.proposals(replace(CLUSTER, brain="manual"), "/runs/new")
    assert sorted(one.field for one in taken) == [one.field for one in kept_proposals(database, "/runs/new")]
    assert sorted(proposed, key=lambda one: one.field) == list(kept_proposals(database, "/runs/new"))
    client.close()


def test_runs_share(url: str) -> None:
    client, spec = Memory(), RunSpec(("train.py",), workers=CLUSTER.workers, brain="cluster")
    low = client.share("/runs/low", spec, Ask("queue", 8, 0))
    high = client.share("/runs/high", spec, Ask("queue", 0, 0, priority=3, speeds=(Speed(1, 1.0),)))
    again = client.share("/runs/low", spec, Ask("queue", 8, 0))
    assert low is not None
    assert high is not None
    assert again is not None
    assert (low.workers, high.workers, again.workers) == (8, 7, 1)
    client.leave("/runs/high", "queue")
    last = client.share("/runs/low", spec, Ask("queue", 1, 7))
    assert last is not None
    assert last.workers == 8
    assert client.share("/runs/low", replace(spec, brain="single"), Ask("queue", 1, 7)) is None
    client.close()


def test_a_run_is_remembered_at_its_end(url: str, database: Database, runs: Path) -> None:
    client = Memory()
    client.remember(open_store(str(runs / "succeeded")))
    assert [one.outcome for one in memory.known(database)] == ["succeeded"]
    client.close()
