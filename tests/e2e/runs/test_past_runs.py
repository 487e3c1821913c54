"""A run begins with what past runs have taught, and stays the same run for whoever attaches to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import start_run
from airflow_elastic.core.event_sentences import sentence
from airflow_elastic.core.machine import replay
from airflow_elastic.spec.errors import RunDiffers
from airflow_elastic.spec.run import RunSpec
from tests.support.driving import driving, training

BRAIN = "AIRFLOW_ELASTIC_BRAIN"


async def trained(folder: Path, spec: RunSpec) -> None:
    async with driving(folder, spec) as driven:
        state = await driven.end()
        assert state.outcome == "succeeded", state.reason


async def test_a_new_run_begins_with_what_is_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BRAIN, f"sqlite:///{tmp_path}/brain.db")
    spec = training("--epochs=3", "--step-seconds=0.05", brain="cluster", name="learns")
    await trained(tmp_path / "one", spec)
    await trained(tmp_path / "two", spec)
    new = open_store(str(tmp_path / "three"))
    state = start_run(new, spec).state
    learnt = {one.field: one for one in state.proposals if one.is_in(state.spec.to_dict())}
    assert "health.start_seconds" in learnt, "two runs say how long a start takes"
    assert learnt["health.start_seconds"].runs == 2
    assert state.spec.health.start_seconds < spec.health.start_seconds
    created = Journal(new).read()
    assert "past runs have taught health.start_seconds" in (sentence(created[0], None, state) or "")
    # Another try of the task has the specification as it is written.
    assert start_run(new, spec, owner="another try").state.spec == state.spec
    assert replay(Journal(new).read()) == start_run(new, spec, owner="another try").state
    with pytest.raises(RunDiffers):
        start_run(new, replace(spec, early_stop="loss 5"))


async def test_manual_only_proposes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BRAIN, f"sqlite:///{tmp_path}/brain.db")
    spec = training("--epochs=3", "--step-seconds=0.05", brain="manual", name="learns")
    await trained(tmp_path / "one", spec)
    state = start_run(open_store(str(tmp_path / "two")), spec).state
    assert state.spec == spec
    assert state.proposals


def test_a_memory_out_of_reach_stops_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(BRAIN, "postgresql+psycopg2://somebody:hunter2@127.0.0.1:9/brain")
    spec = training(brain="cluster")
    state = start_run(open_store(str(tmp_path / "run")), spec).state
    assert (state.spec, state.proposals) == (spec, ())
    assert "the memory of past runs is not used" in caplog.text
    assert "hunter2" not in caplog.text
