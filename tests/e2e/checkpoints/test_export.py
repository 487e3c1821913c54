"""Weights are exported from a shell: those of this run, and nothing hostile is executed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_elastic.runtime as elastic
from airflow_elastic.adapters.records import checkpoint_retention
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.run import RunSpec
from tests.e2e.checkpoints.test_load_model import network, save, save_forged, spoil, weights
from tests.support.training.forging import Hostile


def begin(uri: str) -> None:
    Journal(open_store(uri)).append(0, ev.RunCreated(0.0, RunSpec(("train.py",)), scales_in_place=True))


def export(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "airflow_elastic.cli", "checkpoint", "export", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def test_from_a_shell(tmp_path: Path) -> None:
    uri = str(tmp_path / "run")
    save(uri, 10, 20)
    begin(uri)
    (tmp_path / "a file").touch()
    done = export(tmp_path, uri, "model.safetensors", "--step", "10")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the model of checkpoint 10 is in model.safetensors\n"
    for words, code, said in (
        ((uri, "model.onnx"), 2, "of no known format"),
        ((uri, "model.pt", "--step", "7"), 2, "step 7 has no committed checkpoint; there are: 10, 20"),
        ((uri, "/proc/model.pt"), 1, "/proc/model.pt cannot be written: "),
        ((uri, "a file/in/x.pt"), 1, "a file/in/x.pt cannot be written: a file is no folder"),
        ((str(tmp_path / "none"), "model.pt"), 2, "holds no run"),
    ):
        done = export(tmp_path, *words)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        assert said in done.stderr
        assert done.stderr.startswith("airflow-elastic: ")
        assert done.stderr.count("\n") == 1
    unknown = subprocess.run(
        [sys.executable, "-m", "airflow_elastic.cli", "checkpoint", "show", uri],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert unknown.returncode == 2
    assert "there is no command `show`; there are: export, list, now" in unknown.stderr
    with pytest.raises(InvalidInput, match=r"s3://bucket/model\.pt"):
        elastic.export_weights(uri, Path("s3://bucket/model.pt"))
    spoil(uri, 20)
    assert "checkpoint 10" in export(tmp_path, uri, "model.pt").stdout


def test_a_checkpoint_of_another_run_is_not_taken_for_this_runs(tmp_path: Path) -> None:
    """Ranks refuse it, too. What lay there when the run began is its own, and so is all where no run is."""
    uri, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    for run, step in ((uri, 10), (theirs, 20)):
        Journal(open_store(run)).append(
            0, ev.RunCreated(0.0, RunSpec(("train.py",)), scales_in_place=True, adopts=())
        )
        save(run, step)
    shutil.copytree(f"{theirs}/checkpoints", f"{uri}/checkpoints", dirs_exist_ok=True)
    model = network()
    before = weights(model)
    for step in (None, 20):
        with pytest.raises(
            InvalidInput,
            match=r"checkpoint 20 in .*ours is of another run .* copied there after .* name another step.* remove "
            r"checkpoints/manifests/",
        ):
            elastic.load_model(uri, model, step=step)
    assert weights(model) == before
    done = export(tmp_path, uri, "model.pt")
    assert (done.returncode, "is of another run" in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "model.pt").exists()
    assert elastic.load_model(uri, model, step=10).step == 10
    assert checkpoint_retention.own_steps(open_store(uri), -1) == [10]
    said = subprocess.run(
        [sys.executable, "-m", "airflow_elastic.cli", "verify", uri],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 1
    assert "checkpoint 10: whole" in said.stdout
    assert "checkpoint 20: NOT THIS RUN'S" in said.stdout
    assert "a restart is refused as long as checkpoints/manifests/000000000020.json is there" in said.stdout
    shutil.copytree(f"{uri}/checkpoints", tmp_path / "shelf/checkpoints")
    assert elastic.load_model(str(tmp_path / "shelf"), model).step == 20


@pytest.mark.parametrize("form", ["pickle", pytest.param("archive", marks=pytest.mark.slow)])
def test_from_a_shell_nothing_hostile_is_executed_either(tmp_path: Path, form: str) -> None:
    uri, made = str(tmp_path / "run"), tmp_path / "made"
    save_forged(uri, Hostile(made), form)
    begin(uri)
    for step in ([], ["--step", "20"]):
        done = export(tmp_path, uri, "other.pt", *step)
        assert (done.returncode, "Traceback" in done.stderr, made.exists()) == (2, False, False), done.stderr
        assert "checkpoint 20 of" in done.stderr
        assert "posix.mkdir, which is not unpickled" in done.stderr
    assert export(tmp_path, uri, "model.pt", "--step", "10").returncode == 0
