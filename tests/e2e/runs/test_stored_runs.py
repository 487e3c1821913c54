"""Runs that former versions have written are read, and carried on to the end that they would have come to.

Their checkpoints name classes of ours by the modules that these were in then: `Held`, `HeldArray` and `Rest` of
`airflow_elastic.runtime.apart`. Wherever these are now, those names are read for ever.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import airflow_elastic.runtime as elastic
from airflow_elastic.adapters.host import processes
from airflow_elastic.cli.main import cli
from airflow_elastic.engines import Job, find_engine
from airflow_elastic.spec.run import RunSpec
from tests.fixtures.make_runs import plain, result
from tests.support.cli import COMMAND, SCRIPTS
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.training import stored

LOCAL = ["own", "sharded", "phases", "lightning", "huggingface"]

#: What is said in words may be said in better ones, and of a run that goes on, time goes on.
WORDS = ("sentence", "level", "reason", "evidence")
OF_NOW = ("at", "ended_at", "seconds", "goodput", "controller", "stragglers")


def unpacked(name: str, folder: Path) -> Path:
    """A run as if it had been interrupted on this machine."""
    words = {
        stored.SCRIPTS: str(SCRIPTS),
        stored.PYTHON: sys.executable,
        stored.MACHINE: processes.this_machine(),
    }
    return stored.unpack(name, folder, words)


def ask(*words: object) -> str:
    """What a command prints, in this process: it is short."""
    found = CliRunner().invoke(cli, [*map(str, words)], standalone_mode=False, catch_exceptions=False)
    assert found.return_value in (None, 0), found.output
    return found.stdout


def as_stored(run: Path, text: str) -> str:
    """What is told of an unpacked run, as it would be of the stored one."""
    text = text.replace(stored.digest(str(run)), stored.digest(f"{stored.RUNS}/{run.name}"))
    for here, there in ((str(run.parent), stored.RUNS), (str(SCRIPTS), stored.SCRIPTS)):
        text = text.replace(here, there)
    return text


def holds(found: Any, wanted: Any, where: str = "") -> None:
    """Whether a document says all that an older one said: it may say more."""
    if isinstance(wanted, dict):
        assert isinstance(found, dict), where
        assert wanted.keys() <= found.keys(), where
        for key, one in wanted.items():
            holds(found[key], one, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for at, one in enumerate(wanted):
            holds(found[at], one, f"{where}[{at}]")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-3, abs=1e-3), where
    else:
        assert found == wanted, where


@pytest.mark.parametrize("name", ["succeeded", *LOCAL, "cluster"])
def test_status_events_and_checkpoints_are_those_that_its_own_version_told(name: str, tmp_path: Path) -> None:
    run, wanted = unpacked(name, tmp_path), stored.expected(name)
    told = ask("events", run, "--json")
    events = [json.loads(line) for line in as_stored(run, told).splitlines()]
    holds(stored.told(events, *WORDS), stored.told(wanted["events"], *WORDS))
    status = json.loads(as_stored(run, ask("status", run, "--json")))
    without = (*WORDS, *(() if wanted["status"]["outcome"] else OF_NOW))
    holds(stored.told(status, *without), stored.told(wanted["status"], *without))
    verified = json.loads(as_stored(run, ask("verify", run, "--json")))
    holds(verified, wanted["verify"])
    listed = json.loads(ask("checkpoint", "list", run, "--json"))["checkpoints"]
    there = {one["step"]: one for one in listed if one["damaged"] is None and "storage" in one["tiers"]}
    assert [*reversed(there)] == [one["step"] for one in wanted["verify"]["checkpoints"] if one["ok"]]
    assert all(one["verified_by"].endswith("by `verify`") for one in there.values())


def test_a_job_on_a_cluster_is_known_again() -> None:
    """By its name, and by the digest of what it is: else a new version would not take the old one's job over."""
    wanted = stored.expected("cluster")
    spec = RunSpec.from_dict(wanted["events"][0]["spec"])
    job = Job("s3://bucket/digits", spec, 1, 2)
    assert (spec.digest, job.name) == (wanted["digest"], wanted["job"])
    rendered = find_engine("job").render(job)
    holds(rendered, wanted["manifest"])


@pytest.mark.parametrize(
    "name",
    [
        "own",
        pytest.param("phases", marks=pytest.mark.slow),
        pytest.param("sharded", marks=pytest.mark.slow),
        pytest.param("lightning", marks=pytest.mark.slow),
        pytest.param("huggingface", marks=pytest.mark.slow),
    ],
)
def test_interrupted_it_is_carried_on_to_the_same_end(name: str, tmp_path: Path) -> None:
    package = {"lightning": "lightning", "huggingface": "transformers"}.get(name, "torch")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    run, wanted = unpacked(name, tmp_path), stored.expected(name)
    command = [*COMMAND, "run", "--uri", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in ask("events", run, "--json").splitlines()]
    assert [one["event"] for one in events[: len(wanted["events"])]] == [
        one["event"] for one in wanted["events"]
    ]
    request = "ScaleRequested" if name == "sharded" else "SaveRequested"
    assert request in [one["event"] for one in events], "what waited in its mailbox"
    status = json.loads(ask("status", run, "--json"))
    assert (status["outcome"], len(status["attempts"])) == ("succeeded", 2)
    assert status["attempts"][1]["from_step"] >= 5, "it went on from a checkpoint of the former version"
    if name == "sharded":
        assert status["world_size"] == 1
    assert json.loads(ask("verify", run, "--samples", "--json"))["ok"]
    holds(result(tmp_path / f"{name}.out"), wanted["end"])


def test_weights_of_a_sharded_checkpoint_are_read_by_one_process(tmp_path: Path) -> None:
    from tests.support.scripts.stored import network

    run, wanted = unpacked("sharded", tmp_path), stored.expected("sharded")["model"]
    model = network()
    assert elastic.load_model(str(run), model).step == wanted["step"]
    holds(plain(dict(model.named_parameters())), wanted["weights"])
    assert model[0].calls == wanted["calls"], "a state that is no tensor"
    elastic.export_weights(str(run), str(tmp_path / "model.pt"))
    other = network()
    torch.nn.init.zeros_(other[2].weight)
    elastic.load_weights(str(tmp_path / "model.pt"), other)
    holds(plain(dict(other.named_parameters())), wanted["weights"])
