"""Under a framework, too, a training ends when it gets no better, and starts from what another one has learned."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.models.choose import choose
from airflow_elastic.core.state import RunState
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.models.start import StartFrom
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
from tests.support.driving import SCRIPTS, driving

VALUES = ("0.5", "0.3", "0.4", "0.3", "0.35", "0.1", "0.05")
METRICS = {"lightning": "val_loss", "huggingface": "eval_error", "accelerate": "val_loss"}
PACKAGES = {"lightning": "lightning", "huggingface": "transformers", "accelerate": "accelerate"}
FRAMEWORKS = [
    pytest.param(
        name, marks=pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"needs {package}")
    )
    for name, package in PACKAGES.items()
]


def stopping(kind: str, out: Path, *words: str, **changes: Any) -> RunSpec:
    defaults: dict[str, Any] = {
        "workers": Workers(2),
        "checkpoint": CheckpointPolicy(every_steps=3, keep_last=1),
        "restart": RestartPolicy(backoff_limit=3, backoff_seconds=0.1),
        "early_stop": f"{METRICS[kind]} 3",
    }
    command = (str(SCRIPTS / "framework_stop.py"), kind, *VALUES, f"--out={out}", *words)
    return RunSpec(command, **{**defaults, **changes})


async def trained(uri: Path, spec: RunSpec) -> RunState:
    async with driving(uri, spec) as one:
        return await one.end()


@pytest.mark.parametrize("kind", FRAMEWORKS)
@pytest.mark.parametrize("die_at", [-1, 13, 20])
async def test_it_ends_with_and_without_a_restart(tmp_path: Path, kind: str, die_at: int) -> None:
    out = tmp_path / "out"
    state = await trained(tmp_path / "run", stopping(kind, out, f"--die-at={die_at}"))
    reason = f"stopped early: {METRICS[kind]} has not improved for 3 reports; best 0.3 at step 8"
    assert (state.outcome, state.reason) == ("succeeded", reason)
    assert len(state.attempts) == (1 if die_at < 0 else 2)
    lines = [line.partition(" ")[2] for line in out.read_text().splitlines()]
    assert lines[-1] == "end at 20"
    assert sorted(set(lines[:-1])) == sorted(f"epoch at {step}" for step in (4, 8, 12, 16, 20))
    assert choose(open_store(str(tmp_path / "run")), best=f"min {METRICS[kind]}").step == 8


async def test_lightning_ends_by_a_metric_of_its_steps(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    out = tmp_path / "out"
    state = await trained(tmp_path / "run", stopping("lightning", out, "--in-step"))
    assert state.outcome == "succeeded", state.reason
    assert state.reason == "stopped early: val_loss has not improved for 3 reports; best 0.3 at step 5"
    assert out.read_text().splitlines()[-1] == "1 end at 17"


@pytest.mark.parametrize("kind", FRAMEWORKS)
async def test_it_starts_from_another_run(tmp_path: Path, kind: str) -> None:
    """With a learning rate of 0 it ends with the weights that it began with."""
    source, out = tmp_path / "source", tmp_path / "out"
    state = await trained(source, stopping(kind, tmp_path / "first", early_stop=None))
    assert state.outcome == "succeeded", state.reason
    start = StartFrom(str(source))
    state = await trained(
        tmp_path / "run", stopping(kind, out, "--rate=0", early_stop=None, start_from=start)
    )
    assert state.outcome == "succeeded", state.reason
    first, then = (torch.load(tmp_path / name, weights_only=True) for name in ("first.pt", "out.pt"))
    assert all(torch.equal(first[name], then[name]) for name in first)
