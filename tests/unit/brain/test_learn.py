"""Learning from stored runs, by the functions and by the commands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from airflow_elastic.adapters.records.reports import write_progress
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.brain import memory
from airflow_elastic.brain.database import Database
from airflow_elastic.brain.learn import learn
from airflow_elastic.brain.read import facts_of
from airflow_elastic.cli.main import cli
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.errors import RunMissing
from tests.support.histories import fill
from tests.support.runs.watched import submitted, trained, write_run
from tests.unit.brain.conftest import RUNS


def ask(*words: object) -> Result:
    return CliRunner().invoke(cli, ["brain", *map(str, words)], standalone_mode=False)


def test_each_run_is_learnt_and_one_that_has_ended_only_once(database: Database, runs: Path) -> None:
    first = learn(database, str(runs))
    assert [Path(uri).name for uri in first.read] == sorted(RUNS)
    facts = {Path(one.uri).name: one for one in memory.known(database)}
    again = learn(database, str(runs))
    assert (len(again.read), again.unchanged) == (len(RUNS) - 1, 1)
    assert {Path(one.uri).name: one for one in memory.known(database)} == facts
    done = facts["succeeded"]
    assert (done.outcome, done.steps, done.total_steps, done.timing.saves) == ("succeeded", 24, 24, 3)
    assert [(one.workers, one.steps) for one in done.speeds] == [(2, 24)]
    assert done.speeds[0].step_seconds == pytest.approx(0.0268, rel=0.01)
    assert done.timing.longest_start_seconds == pytest.approx(25.66, rel=0.01)


def test_built_anew_it_has_the_same_rows(database: Database, runs: Path) -> None:
    learn(database, str(runs))
    before = memory.known(database)
    assert memory.forget(database, None) == len(RUNS)
    assert memory.known(database) == ()
    for uri in sorted((one.uri for one in before), reverse=True):
        learn(database, uri)  # one by one, in another order
    assert memory.known(database) == before


def test_a_run_that_goes_on_is_read_again(database: Database, tmp_path: Path) -> None:
    write_run(tmp_path / "one", submitted(), progress=trained(100), name="one")
    learn(database, str(tmp_path))
    assert [one.steps for one in memory.known(database)] == [100]
    store = open_store(str(tmp_path / "one"))
    write_progress(store, trained(200))
    learn(database, str(tmp_path))
    (now,) = memory.known(database)
    assert (now.steps, now.outcome) == (200, None)


def test_an_older_look_at_a_run_does_not_replace_a_newer_one(database: Database, runs: Path) -> None:
    newer = facts_of(open_store(str(runs / "succeeded")), 0.0)
    assert memory.remember(database, newer, 1.0)
    assert not memory.remember(database, replace(newer, entries=newer.entries - 1, steps=1), 2.0)
    assert memory.known(database) == (newer,)


def test_what_workers_use_is_known_by_quantiles(database: Database, tmp_path: Path) -> None:
    store = write_run(tmp_path / "one", submitted(), progress=trained(100), name="one")
    fill(store, days=0.2, workers=2, ranks=2)
    learn(database, str(tmp_path))
    (one,) = memory.known(database)
    uses = {use.signal: use for use in one.uses}
    assert set(uses) == {"cpu", "memory_bytes", "gpu_utilisation", "gpu_memory_bytes"}
    cpu = uses["cpu"]
    assert 6.5 * 0.9 <= cpu.p50 <= cpu.p95 <= cpu.peak <= 6.5 * 1.05 * 1.03
    assert one.timing.pause_seconds is not None
    assert one.timing.pause_seconds >= 10.0


def test_a_run_that_cannot_be_read_is_left_out_and_told(database: Database, runs: Path) -> None:
    broken = runs / "own" / "journal"
    entry = sorted(broken.iterdir())[1]
    entry.write_text('{"version": 99}')
    found = learn(database, str(runs))
    assert len(found.read) == len(RUNS) - 1
    ((uri, why),) = found.skipped
    assert uri.endswith("/own")
    assert "version 99" in why


def test_the_commands(url: str, runs: Path) -> None:
    told = json.loads(ask("learn", runs, "--json").stdout)
    assert len(told["read"]) == len(RUNS)
    assert "3 known" in ask("learn", runs).output or "1 known" in ask("learn", runs).output
    shown = ask("show").output
    assert "two_phases" in shown
    assert "2: 0.02676" in shown
    assert {one["name"] for one in json.loads(ask("show", "--json").stdout)["runs"]} == {
        "stored",
        "two_phases",
    }
    assert len(json.loads(ask("show", "stored", "--json").stdout)["runs"]) == 2
    assert json.loads(ask("forget", runs / "own", "--json").stdout) == {"forgotten": 1}
    assert "2 runs forgotten" in ask("forget", runs).output
    assert "nothing is known yet" in ask("show").output


def test_bad_input_is_told(url: str, tmp_path: Path, runs: Path) -> None:
    (tmp_path / "empty").mkdir()
    empty = ask("learn", tmp_path / "empty")
    assert isinstance(empty.exception, RunMissing)
    assert "holds no runs: name a run, or the folder" in str(empty.exception)
    learn(Database(url), str(runs))
    assert "known are: stored, two_phases" in str(ask("show", "nobody").exception)
    assert "nothing is known of" in str(ask("forget", tmp_path / "elsewhere").exception)
    assert "either the URI" in str(ask("forget").exception)
    assert "either the URI" in str(ask("forget", "--all", tmp_path).exception)


def test_a_failed_run_has_its_failures(database: Database, tmp_path: Path) -> None:
    ended = ev.RunEnded(submitted().at + 10.0, "failed", "no")
    write_run(tmp_path / "one", submitted(), ended, name="one")
    learn(database, str(tmp_path))
    (one,) = memory.known(database)
    assert (one.outcome, one.wall_seconds) == ("failed", pytest.approx(20.0, abs=1.0))
