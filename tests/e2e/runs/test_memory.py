"""The memory of past runs, from real trainings: learnt, proposed, planned, and used by a new run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from airflow_elastic.brain.client import Memory
from airflow_elastic.spec.run import RunSpec
from tests.support.cli import SCRIPTS, Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setenv("AIRFLOW_ELASTIC_BRAIN", f"sqlite:///{tmp_path}/brain.db")
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    found = Shell(tmp_path)
    yield found
    found.close()


def test_what_runs_have_measured_becomes_a_plan_and_the_start_of_the_next(
    shell: Shell, tmp_path: Path
) -> None:
    """Two trainings whose steps take half as long with two workers: 20 ms for each sample of a rank."""
    plain = {
        "command": [str(SCRIPTS / "train.py"), "--epochs", "2", "--sample-seconds", "0.02"],
        "name": "taught",
        "workers": {"count": 1, "min": 1, "max": 2},
        "checkpoint": {"every_steps": 10},
        "working_dir": str(tmp_path),
        "brain": "cluster",
    }
    written = tmp_path / "taught.yaml"
    written.write_text(yaml.safe_dump({**plain, "scaling": [{"at_step": 8, "workers": 2}]}))
    before = shell("plan", written)
    assert "unknown: the time of a step" in before.stdout, before.stderr
    done = shell("run", "--uri", tmp_path / "runs" / "first", "--spec", written)
    assert done.returncode == 0, done.stdout + done.stderr

    learnt = json.loads(shell("brain", "learn", tmp_path / "runs", "--json").stdout)
    assert learnt["read"] == [str(tmp_path / "runs" / "first")]
    (run,) = json.loads(shell("brain", "show", "taught", "--json").stdout)["runs"]
    assert run["outcome"] == "succeeded"
    measured = {one["workers"]: one["step_seconds"] for one in run["speeds"]}
    assert set(measured) == {1, 2}
    assert measured[2] < 0.8 * measured[1]
    assert run["timing"]["starts"] >= 2

    planned = json.loads(shell("plan", written, "--json").stdout)
    assert planned["recommended"] == 2
    assert planned["total_steps"] == run["total_steps"]
    assert {one["workers"] for one in planned["options"] if one["measured"]} == {1, 2}
    proposals = json.loads(shell("brain", "propose", written, "--json").stdout)["proposals"]
    count = next(one for one in proposals if one["field"] == "workers.count")
    assert (count["value"], count["now"], count["runs"]) == (2, 1, 1)

    memory = Memory()
    spec, taken = memory.begin(RunSpec.from_dict(plain))
    memory.close()
    assert spec.workers.count == 2
    assert "workers.count" in [one.field for one in taken]
