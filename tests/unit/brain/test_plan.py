"""`airflow-elastic plan` and `brain propose`: of stored runs and of specifications."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from airflow_elastic.brain import memory
from airflow_elastic.brain.database import Database
from airflow_elastic.cli.main import cli
from airflow_elastic.spec.errors import InvalidInput, RunMissing
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.testing.ports import free_port
from tests.unit.core.brain.test_proposals import fact, speeds


def ask(*words: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, words)], standalone_mode=False)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "mnist.yaml"
    plain = {
        "command": ["train.py"],
        "working_dir": str(tmp_path),
        "workers": {"count": 2, "min": 1, "max": 8, "resources": {"cpu": "4"}},
    }
    path.write_text(yaml.safe_dump(plain))
    return path


def known_runs(database: Database, path: Path) -> None:
    """Two past runs of the specification."""
    run = RunSpec.from_dict({**yaml.safe_load(path.read_text()), "name": "train"})
    for i, curve in enumerate((speeds((1, 1.1), (2, 0.6)), speeds((4, 0.35)))):
        memory.remember(
            database, fact(run, i, speeds=curve, total_steps=5000, longest_start_seconds=900.0), 5.0
        )


def test_a_new_run_is_planned_from_past_ones(database: Database, written: Path) -> None:
    known_runs(database, written)
    found = json.loads(ask("plan", written, "--json", "--price-per-gpu-hour", "3").stdout)
    assert (found["recommended"], found["workers"], found["runs"], found["total_steps"]) == (8, 2, 2, 5000)
    two = next(one for one in found["options"] if one["workers"] == 2)
    assert two["seconds"] == pytest.approx(3000, rel=0.01)
    assert two["cost"] == pytest.approx(two["gpu_hours"] * 3)
    assert found["bottleneck"] == "fixed"
    shown = ask("plan", written, "--steps", 100).output
    assert "at step 0 of 100; from 2 runs" in shown
    assert "workers: 8, instead of 2" in shown
    assert "unknown: the cost of a save" in shown


def test_a_run_is_planned_from_itself(url: str, runs: Path) -> None:
    found = json.loads(ask("plan", runs / "own", "--json").stdout)
    assert (found["step"], found["total_steps"], found["run"]["uri"]) == (10, 24, str(runs / "own"))
    assert found["memory_problem"] is None
    done = json.loads(ask("plan", runs / "succeeded", "--json").stdout)
    assert (done["step"], done["total_steps"]) == (0, 24)  # another one like it
    assert "bottleneck: starting" in ask("plan", runs / "own").output


def test_without_its_memory_a_run_is_planned_all_the_same(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_ELASTIC_BRAIN", f"postgresql://ada:secret@127.0.0.1:{free_port()}/brain")
    done = ask("plan", runs / "own")
    assert done.exit_code == 0
    assert "without past runs" in done.output
    assert "secret" not in done.output
    assert "bottleneck: starting" in done.output


def test_proposals_are_shown_and_kept(database: Database, written: Path, runs: Path) -> None:
    assert "nothing to propose: 0 runs like this one" in ask("brain", "propose", written).output
    known_runs(database, written)
    found = json.loads(ask("brain", "propose", written, "--json").stdout)
    fields = {one["field"]: one for one in found["proposals"]}
    assert fields["workers.count"]["value"] == 8
    assert fields["health.start_seconds"]["runs"] == 2
    shown = ask("brain", "propose", written).output
    assert "workers.count" in shown
    assert "brain: cluster" in shown
    assert ask("brain", "propose", runs / "own", "--json").exit_code == 0
    assert memory.kept_proposals(database, str(runs / "own")) == ()


def test_bad_input_is_told(url: str, tmp_path: Path, runs: Path) -> None:
    for command in (("plan",), ("brain", "propose")):
        missing = ask(*command, tmp_path / "no.yaml")
        assert isinstance(missing.exception, InvalidInput)
        assert "there is no such file" in str(missing.exception)
        neither = ask(*command, tmp_path / "nowhere")
        assert isinstance(neither.exception, RunMissing)
        assert "neither a file nor a run" in str(neither.exception)
    assert "--engine goes with" in str(ask("plan", runs / "own", "--engine", "job").exception)
    assert ask("plan", runs / "own", "--price-per-gpu-hour", "-1").exception is not None
