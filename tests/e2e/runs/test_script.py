"""Runs whose script is part of their specification: workers write it, and no folder has it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.control import start_run
from airflow_elastic.spec.events import RunMoved
from airflow_elastic.spec.run import RunSpec
from tests.support.driving import SCRIPTS, driving, left_over, training
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.runs.pods import pod, submitted

TEXT = (SCRIPTS / "train.py").read_text()


def shipped(*words: str, **changes: object) -> RunSpec:
    """The run of scripts/train.py, of which workers get only the text."""
    spec = training(*words)
    return replace(spec, command=("fit.py", *spec.command[1:]), script=TEXT, **changes)  # type: ignore[arg-type]


async def test_a_shipped_script_saves_loses_a_rank_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    async with driving(
        tmp_path / "run", shipped("--epochs=8", "--step-seconds=0.05", f"--out={out}")
    ) as driven:
        await driven.until(lambda: checkpoints.steps(driven.run.store), "a checkpoint")
        driven.kill_rank(1)
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2)
    assert state.attempts[1].from_step > 0
    assert out.read_text()
    assert left_over(tmp_path / "run") == []


async def test_an_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    async with driving(tmp_path, shipped("--fail-at=3")) as driven:
        state = await driven.end()
    failure = state.attempts[0].failure
    assert failure is not None
    line = next(n for n, text in enumerate(TEXT.splitlines(), 1) if "a bad batch" in text)
    assert f'fit.py", line {line}' in (failure.traceback or "")


@pytest.mark.parametrize("launcher", ["torchrun-plain", "accelerate", "python"])
async def test_other_launchers_run_it_too(launcher: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    spec = replace(shipped("--epochs=1", f"--out={out}"), launcher=launcher)
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    assert out.read_text()


async def test_a_stopped_run_goes_on_with_a_corrected_script(tmp_path: Path) -> None:
    """As with a file that was corrected: the run is the same, and the journal has both texts."""
    spec = shipped("--epochs=2", "--fail-at=7")
    async with driving(tmp_path, spec) as driven:
        assert (await driven.end()).outcome == "failed"
    better = replace(
        spec, script=TEXT.replace("a bad batch", "a batch").replace("== options.fail_at", "is None")
    )
    run = start_run(driven.run.store, better)
    assert run.state.spec == better
    async with driving(tmp_path, better) as driven:
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    assert state.attempts[-1].from_step > 0
    (moved,) = (event for event in Journal(driven.run.store).read() if isinstance(event, RunMoved))
    assert (moved.spec.script, state.spec.script) == (better.script, better.script)


def test_pods_write_it_where_all_of_them_find_it(tmp_path: Path) -> None:
    """The agents of pods, without a cluster: they share nothing but the place of the run."""
    spec = shipped("--epochs=1", f"--out={tmp_path / 'out'}")
    files = submitted(str(tmp_path / "run"), tmp_path, spec)
    record = files.record
    assert record is not None
    assert record.is_same(replace(record, spec=replace(spec, script="print()")))
    assert not record.is_same(replace(record, digest="another"))
    with contextlib.ExitStack() as stack:
        pods = [stack.enter_context(pod(files, index, tmp_path / f"tmp-{index}")) for index in (0, 1)]
        assert [one.wait(PATIENCE_SECONDS) for one in pods] == [0, 0]
    assert (tmp_path / "out").read_text()
    for index in (0, 1):
        found = tmp_path / f"tmp-{index}" / f"airflow-elastic-{record.name}" / "fit.py"
        assert found.read_text() == TEXT
        assert found.parent.stat().st_mode & 0o077 == 0
