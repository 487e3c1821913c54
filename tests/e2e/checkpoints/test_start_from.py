"""A run starts from what another one has learned; and again, until it has a checkpoint of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import airflow_elastic.runtime as elastic
from airflow_elastic.adapters.records import checkpoint_retention
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import start_run
from airflow_elastic.control.jobs import job_of
from airflow_elastic.control.models import Request, TorchExporter, promote
from airflow_elastic.control.models.evaluations import let_go
from airflow_elastic.control.models.start_from import holder
from airflow_elastic.control.runs import open_run
from airflow_elastic.core.state import RunState
from airflow_elastic.engines import find_engine
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput, SpecError
from airflow_elastic.spec.models.start import Origin, StartFrom
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
from tests.support import s3
from tests.support.driving import SCRIPTS, driving


def warm(out: Path, *words: str, start: StartFrom | None = None, **changes: Any) -> RunSpec:
    defaults: dict[str, Any] = {
        "workers": Workers(1),
        "checkpoint": CheckpointPolicy(every_steps=4),
        "restart": RestartPolicy(backoff_limit=3, backoff_seconds=0.1),
        "start_from": start,
    }
    return RunSpec((str(SCRIPTS / "warm.py"), f"--out={out}", *words), **{**defaults, **changes})


async def trained(uri: Path, spec: RunSpec) -> RunState:
    async with driving(uri, spec) as one:
        return await one.end()


def begun(out: Path, attempt: int = 1, rank: int = 0) -> Any:
    return json.loads((out / f"{attempt}-{rank}.json").read_text())


def spoilt(file: str | None) -> str:
    """The same file, with another last byte."""
    assert file is not None
    path = Path(file)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    return file


def last(out: Path) -> Any:
    return json.loads((out / "last.json").read_text())


@pytest.fixture
async def source(tmp_path: Path) -> Path:
    """A run with checkpoints of steps 4 and 8, whose weights are in `source-out`."""
    state = await trained(tmp_path / "source", warm(tmp_path / "source-out"))
    assert state.outcome == "succeeded", state.reason
    return tmp_path / "source"


async def test_from_a_run_and_again_after_a_failure_before_the_first_checkpoint(
    source: Path, tmp_path: Path
) -> None:
    out, uri = tmp_path / "out", tmp_path / "next"
    start = StartFrom(str(source))
    spec = warm(out, "--fail-first=2", "--lr=0.5", start=start, workers=Workers(2))
    state = await trained(uri, spec)
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    assert state.origin == Origin(str(source), str(source), 8)
    learned = last(tmp_path / "source-out")
    for attempt in (1, 2):
        for rank in (0, 1):
            told = begun(out, attempt, rank)
            assert told["weights"] == learned
            assert (told["step"], told["moments"], told["rate"], told["resumed"]) == (0, [], 0.5, False)
            assert told["origin"] == f"checkpoint 8 of {source}"
    store = open_store(str(source))
    assert checkpoint_retention.pins(store)[8].by == f"run {uri}, which starts from it"
    assert any(f"run {uri}" in str(use) for use in checkpoint_retention.uses(store, 8))


async def test_its_own_checkpoint_replaces_it(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    spec = warm(out, "--fail-first=6", start=StartFrom(str(source), step=4))
    state = await trained(tmp_path / "next", spec)
    assert state.outcome == "succeeded", state.reason
    assert state.origin is not None
    assert state.origin.step == 4
    assert (begun(out, 2)["step"], begun(out, 2)["resumed"]) == (4, True)
    assert begun(out, 2)["weights"] != begun(out, 1)["weights"]


@pytest.mark.parametrize(
    ("suffix", "words"), [("pt", ()), ("safetensors", ()), ("safetensors", ("--sharded",))]
)
async def test_from_a_file(source: Path, tmp_path: Path, suffix: str, words: tuple[str, ...]) -> None:
    file = tmp_path / f"model.{suffix}"
    elastic.export_weights(str(source), file)
    out = tmp_path / "out"
    state = await trained(tmp_path / "next", warm(out, *words, start=StartFrom(str(file))))
    assert state.outcome == "succeeded", state.reason
    assert begun(out)["weights"] == last(tmp_path / "source-out")
    assert begun(out)["origin"] == f"the weights in {file}"


async def test_what_does_not_fit_is_bad_input(source: Path, tmp_path: Path) -> None:
    spec = warm(tmp_path / "out", "--width=5", start=StartFrom(str(source)))
    state = await trained(tmp_path / "next", spec)
    assert (state.outcome, len(state.attempts)) == ("failed", 1)
    assert f"start_from: checkpoint 8 of {source} is of another model" in (state.reason or "")
    assert "model.0.bias is (5,) in the script and (4,) in the checkpoint" in (state.reason or "")


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    """Before anything is created; and with `optional` the run begins from scratch."""
    uri = tmp_path / "next"
    for source, said in (
        (tmp_path / "none", "holds neither a run nor a promoted model"),
        (tmp_path / "none.pt", "there is no such file"),
    ):
        spec = warm(tmp_path / "out", start=StartFrom(str(source)))
        with pytest.raises(InvalidInput, match=said):
            start_run(open_store(str(uri)), spec)
        assert not uri.exists()
        optional = replace(spec, start_from=StartFrom(str(source), optional=True))
        there = tmp_path / source.name.replace(".", "-")
        assert start_run(open_store(str(there)), optional).state.origin is None


async def test_what_it_starts_from_is_found_once(source: Path, tmp_path: Path) -> None:
    """A checkpoint that comes later changes nothing for a run that exists."""
    uri = open_store(str(tmp_path / "next"))
    spec = warm(tmp_path / "out", start=StartFrom(str(source), best="max loss"))
    origin = start_run(uri, spec).state.origin
    assert origin is not None
    checkpoint_retention.unpin(open_store(str(source)), 8)
    (source / "checkpoints/manifests" / f"{8:012d}.json").unlink()
    assert start_run(uri, spec).state.origin == origin
    with pytest.raises(
        InvalidInput, match=r"start_from: .*no checkpoint of .* has a metric 'accuracy'; they have:"
    ):
        start_run(
            open_store(str(tmp_path / "third")),
            warm(tmp_path / "out", start=StartFrom(str(source), best="max accuracy")),
        )
    with pytest.raises(InvalidInput, match=r"start_from: .*step 5 has no committed checkpoint; there are: 4"):
        start_run(
            open_store(str(tmp_path / "third")), warm(tmp_path / "out", start=StartFrom(str(source), step=5))
        )


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"source": "runs/a"}, "start_from.source"),
        ({"source": "/a.pt", "step": 3}, "start_from.step"),
        ({"source": "/a.safetensors", "optimizer": True}, "start_from.optimizer"),
        ({"source": "/a", "step": 3, "best": "min loss"}, "start_from.best"),
        ({"source": "/a", "best": "loss"}, "start_from.best"),
        ("", "start_from.source"),
    ],
)
def test_bad_values(given: object, path: str) -> None:
    with pytest.raises(SpecError) as refused:
        RunSpec.from_dict({"command": ["train.py"], "start_from": given})
    assert [problem.path for problem in refused.value.problems] == [path]


def test_a_text_is_the_source() -> None:
    spec = RunSpec.from_dict({"command": ["train.py"], "start_from": "s3://models/digits"})
    assert spec.start_from == StartFrom("s3://models/digits")
    assert "start_from" not in RunSpec(("train.py",)).to_dict()


async def test_from_a_promoted_model(source: Path, tmp_path: Path) -> None:
    """The file that was promoted; or, with the optimizer, the checkpoint that it comes from."""
    model = open_store(str(tmp_path / "model"))
    run = open_store(str(source))
    promote(model, run, Request("test"), TorchExporter())
    out = tmp_path / "out"
    state = await trained(tmp_path / "next", warm(out, start=StartFrom(model.uri)))
    assert state.outcome == "succeeded", state.reason
    assert begun(out)["weights"] == last(tmp_path / "source-out")
    assert begun(out)["origin"] == f"promotion 1 of {model.uri}"
    assert state.origin is not None
    assert (state.origin.run, state.origin.step, state.origin.promotion) == (run.uri, 8, 1)
    weights = spoilt(state.origin.file)
    state = await trained(tmp_path / "damaged", warm(out, start=StartFrom(model.uri)))
    assert state.outcome == "failed"
    assert f"{weights} is damaged: it has another sha256 than was recorded" in (state.reason or "")
    start = StartFrom(model.uri, optimizer=True)
    state = await trained(tmp_path / "another", warm(tmp_path / "more", "--lr=0.7", start=start))
    assert state.outcome == "succeeded", state.reason
    told = begun(tmp_path / "more")
    assert (told["counts"], told["rate"], told["step"]) == ([8] * 4, 0.7, 0)
    with pytest.raises(InvalidInput, match=r"start_from\.step: given 8; allowed: only for a run"):
        start_run(open_store(str(tmp_path / "no")), warm(out, start=StartFrom(model.uri, step=8)))


async def test_with_the_optimizer_and_sharded(source: Path, tmp_path: Path) -> None:
    """By FSDP2 on two ranks, from a run of one rank: each takes its part of the weights and of the states."""
    out = tmp_path / "out"
    start = StartFrom(str(source), optimizer=True)
    spec = warm(out, "--sharded", "--fail-first=2", "--lr=0.7", start=start, workers=Workers(2))
    state = await trained(tmp_path / "next", spec)
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    for attempt in (1, 2):
        told = begun(out, attempt)
        assert told["weights"] == last(tmp_path / "source-out")
        assert (told["counts"], told["rate"], told["step"]) == ([8] * 4, 0.7, 0)
        assert all(any(moment) for moment in told["moments"])


async def test_another_optimizer_is_refused(source: Path, tmp_path: Path) -> None:
    file = tmp_path / "sgd.py"
    file.write_text(
        "import torch, airflow_elastic.runtime as elastic\n"
        "run = elastic.init()\n"
        "model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))\n"
        "run.restore(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))\n"
    )
    start = StartFrom(str(source), optimizer=True)
    state = await trained(tmp_path / "next", RunSpec((str(file),), start_from=start))
    assert (state.outcome, len(state.attempts)) == ("failed", 1)
    assert f"start_from: checkpoint 8 of {source}" in (state.reason or "")


async def test_each_holds_what_it_starts_from_until_it_lets_go(source: Path, tmp_path: Path) -> None:
    """Evaluations of one checkpoint at the same time, a training that starts from it, and a person."""
    store, start = open_store(str(source)), StartFrom(str(source))
    by = {"anna": "anna"}
    for name, evaluation in (("one", True), ("other", True), ("training", None)):
        uri = tmp_path / name
        start_run(open_store(str(uri)), warm(tmp_path / "out", start=start, evaluation=evaluation))
        by[name] = holder(str(uri))
        if name == "one":
            checkpoint_retention.pin(store, 8, by="anna")
    left = {*by}
    for name in ("one", "other", None):
        assert {who for who, told in by.items() if checkpoint_retention.is_pinned_by(store, 8, told)} == left
        if name is not None:
            origin = open_run(str(tmp_path / name)).state.origin
            assert origin is not None
            let_go(origin, open_store, by=str(tmp_path / name))
            left.remove(name)
    assert left == {"anna", "training"}


@pytest.mark.parametrize("engine", ["job", "pytorchjob"])
async def test_what_pods_do_not_see_is_refused(source: Path, tmp_path: Path, engine: str) -> None:
    options: dict[str, Any] = {
        "image": "trainer:1",
        "volumes": [{"mount_path": str(tmp_path / "runs"), "claim": "a"}],
    }
    spec = RunSpec(("train.py",), engine=engine, engine_options=options, start_from=StartFrom(str(source)))
    with pytest.raises(
        InvalidInput, match=r"start_from: checkpoint 8 of .*workers on a cluster do not see it"
    ):
        start_run(open_store(str(tmp_path / "runs/next")), spec)
    assert not checkpoint_retention.pins(open_store(str(source)))
    options["volumes"].append({"mount_path": str(source), "claim": "b"})
    run = start_run(open_store(str(tmp_path / "runs/next")), spec)
    assert job_of(run.store.uri, run.state, 1, find_engine(engine)).origin == run.state.origin


def test_from_a_shell(tmp_path: Path) -> None:
    """A relative path is that of this folder, and what is not there is told."""
    words = ("run", "--uri", "run", "--start-from", "models/base", "--start-step", "3")
    command = [sys.executable, "-m", "airflow_elastic.cli", *words, "--", str(SCRIPTS / "warm.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"start_from: {tmp_path}/models/base holds neither a run nor a promoted model" in done.stderr
    assert not (tmp_path / "run").exists()
    command[-4:-2] = ["--start-best", "loss"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "--start-best: given 'loss'; allowed: `min` or `max`" in done.stderr) == (
        2,
        True,
    )


async def test_from_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run, and a model, of a bucket: two ranks of a worker fetch the checkpoint once."""
    with s3.s3_server() as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        base = f"s3://{server.bucket}"
        async with driving(f"{base}/source", warm(tmp_path / "first")) as one:
            assert (await one.end()).outcome == "succeeded"
        promote(open_store(f"{base}/model"), open_store(f"{base}/source"), Request("test"), TorchExporter())
        for number, source in enumerate((f"{base}/source", f"{base}/model")):
            out = tmp_path / f"out {number}"
            spec = warm(out, start=StartFrom(source), workers=Workers(1, procs=2))
            async with driving(f"{base}/next {number}", spec) as one:
                state = await one.end()
            assert state.outcome == "succeeded", state.reason
            assert begun(out)["weights"] == begun(out, rank=1)["weights"] == last(tmp_path / "first")
