"""A run starts from what another one has learned; and again, until it has a checkpoint of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import airflow_elastic.runtime as elastic
from airflow_elastic.adapters.records import checkpoint_retention
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import start_run
from airflow_elastic.control.models import Request, TorchExporter, promote
from airflow_elastic.core.state import RunState
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput, SpecError
from airflow_elastic.spec.models.start import Origin, StartFrom
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
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


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
async def test_from_a_file(source: Path, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"model.{suffix}"
    elastic.export_weights(str(source), file)
    out = tmp_path / "out"
    state = await trained(tmp_path / "next", warm(out, start=StartFrom(str(file))))
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
    start = StartFrom(model.uri, optimizer=True)
    state = await trained(tmp_path / "another", warm(tmp_path / "more", "--lr=0.7", start=start))
    assert state.outcome == "succeeded", state.reason
    told = begun(tmp_path / "more")
    assert (told["counts"], told["rate"], told["step"]) == ([8] * 4, 0.7, 0)
    with pytest.raises(InvalidInput, match=r"start_from\.step: given 8; allowed: only for a run"):
        start_run(open_store(str(tmp_path / "no")), warm(out, start=StartFrom(model.uri, step=8)))
