"""A training ends when it gets no better: at the same step with and without restarts, on all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.models.choose import choose
from airflow_elastic.core.state import RunState
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
from tests.support.driving import SCRIPTS, driving

#: The best value is that of epoch 1, at step 8; with a patience of 3 the training ends after epoch 4, at step 20.
VALUES = ("0.5", "0.3", "0.4", "0.3", "0.35", "0.1", "0.05")
REASON = "stopped early: val_loss has not improved for 3 reports; best 0.3 at step 8"


def improving(out: Path, *words: str, **changes: Any) -> RunSpec:
    defaults: dict[str, Any] = {
        "workers": Workers(2),
        "checkpoint": CheckpointPolicy(every_steps=3, keep_last=1),
        "restart": RestartPolicy(backoff_limit=3, backoff_seconds=0.1),
        "early_stop": "val_loss 3",
    }
    command = (str(SCRIPTS / "improving.py"), *VALUES, f"--out={out}", *words)
    return RunSpec(command, **{**defaults, **changes})


async def trained(uri: Path, spec: RunSpec) -> RunState:
    async with driving(uri, spec) as one:
        return await one.end()


@pytest.mark.parametrize("words", [(), ("--own",), ("--alone",)])
async def test_it_ends_on_all_ranks_and_keeps_the_best(tmp_path: Path, words: tuple[str, ...]) -> None:
    state = await trained(tmp_path / "run", improving(tmp_path / "out", *words))
    assert (state.outcome, state.reason) == ("succeeded", REASON)
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines == [*(f"1 epoch {epoch}" for epoch in range(5)), "1 end at 20 stopping True"]
    store = open_store(str(tmp_path / "run"))
    assert checkpoints.steps(store) == [8, 20]
    assert choose(store, best="min val_loss").step == 8


@pytest.mark.parametrize("step", [2, 7, 8, 9, 13, 16, 19, 20])
async def test_a_restart_in_the_middle_changes_nothing(tmp_path: Path, step: int) -> None:
    state = await trained(tmp_path / "run", improving(tmp_path / "out", f"--die-at={step}"))
    assert (state.outcome, state.reason, len(state.attempts)) == ("succeeded", REASON, 2)
    assert (tmp_path / "out").read_text().splitlines()[-1] == "2 end at 20 stopping True"
    assert choose(open_store(str(tmp_path / "run")), best="min val_loss").step == 8


async def test_values_that_come_with_each_step_count_when_they_change(tmp_path: Path) -> None:
    """A script repeats the newest value with each step: 0.3 comes with steps 5 to 8, and is one report."""
    state = await trained(
        tmp_path / "run", improving(tmp_path / "out", "--with-step", "--alone", "--die-at=14")
    )
    assert state.outcome == "succeeded"
    assert state.reason == "stopped early: val_loss has not improved for 3 reports; best 0.3 at step 5"
    # The values change with steps 5, 9, 13 and 17.
    assert (tmp_path / "out").read_text().splitlines()[-1] == "2 end at 17 stopping True"
