"""Ranks that train by themselves and average now and then do what the textbook says, late or not, killed or not."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import airflow_elastic.runtime as elastic
from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.sample_accounts import read_accounts
from airflow_elastic.core.checkpoints.sample_accounts import prove
from airflow_elastic.runtime.collectives.local_sgd import LocalSGD
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.data.sampler import ElasticBatches
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.run import Workers
from tests.support.driving import SCRIPTS, driving, left_over, training
from tests.support.machine.patience import PATIENCE_SECONDS

SCRIPT = str(SCRIPTS / "collectives/averaged.py")


def _loaded(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("averaged", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


averaged = _loaded(SCRIPT)


def textbook(ranks: int, epochs: int, every: int, late: tuple[int, ...] = ()) -> tuple[Any, Any]:
    """What the weights and the momentum are in the end, where one process does what all ranks do, one after the other.

    At the steps `late` the last rank is held up until the next round is behind it.
    """
    models, optimizers = zip(*(averaged.build() for _ in range(ranks)), strict=True)
    data, step = averaged.data().tensors[0], 0
    anchors = [_weights(model) for model in models]
    missed = [-(-step // every) * every for step in late]
    for epoch in range(epochs):
        shares = [
            ElasticBatches(
                averaged.LENGTH,
                global_batch=averaged.BATCH,
                epoch=epoch,
                seed=averaged.SEED,
                rank=rank,
                world_size=ranks,
            )
            for rank in range(ranks)
        ]
        for batches in zip(*(zip(one, one.plan(), strict=True) for one in shares), strict=True):
            step += 1
            for model, optimizer, (indices, piece) in zip(models, optimizers, batches, strict=True):
                averaged.train(model, optimizer, data[indices], piece.weight)
            if step % every == 0:
                there = ranks - (step in missed)
                values = [_weights(model) for model in models]
                mean = torch.stack(values[:there]).mean(0)
                for rank, model in enumerate(models):
                    now = mean if rank < there else mean + (values[rank] - anchors[rank])
                    if rank >= there:
                        now[_count(model) :] = (mean + values[rank])[_count(model) :] / 2
                    torch.nn.utils.vector_to_parameters(now[: _count(model)].clone(), model.parameters())
                    _set_buffers(model, now[_count(model) :])
                    anchors[rank] = mean
    states = [averaged.numbers(*pair) for pair in zip(models, optimizers, strict=True)]
    weights, momentum = (
        [torch.tensor(parts, dtype=torch.float64).mean(0) for parts in zip(*side, strict=True)]
        for side in zip(*states, strict=True)
    )
    return weights, momentum


def _weights(model: torch.nn.Module) -> torch.Tensor:
    buffers = [one for one in model.buffers() if one.is_floating_point()]
    return torch.cat([one.detach().flatten().clone() for one in (*model.parameters(), *buffers)])


def _count(model: torch.nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())


def _set_buffers(model: torch.nn.Module, values: torch.Tensor) -> None:
    begin = 0
    for one in model.buffers():
        if one.is_floating_point():
            one.copy_(values[begin : begin + one.numel()])
            begin += one.numel()


def run_plainly(folder: Path, ranks: int, *words: str, ok: bool = True) -> str:
    """By plain torchrun, without us; returns what the ranks said."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        SCRIPT,
    ]
    done = subprocess.run(
        [*command, f"--out={folder}", *words],
        timeout=PATIENCE_SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) is ok, done.stderr
    return done.stderr


def seen(folder: Path, ranks: int) -> list[tuple[Any, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def same(found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    for ours, theirs in zip((*found[0], *found[1]), (*expected[0], *expected[1]), strict=True):
        assert ours == pytest.approx(theirs.tolist(), rel=1e-9, abs=1e-12)


def test_it_is_local_sgd(tmp_path: Path) -> None:
    run_plainly(tmp_path, 3, "--every=4", "--epochs=2")
    found = seen(tmp_path, 3)
    assert found[0] == found[1] == found[2]
    same(found[0], textbook(3, 2, 4))


@pytest.mark.parametrize("late", [pytest.param((6,), marks=pytest.mark.slow), (6, 10)])
def test_a_rank_that_is_late_holds_nobody_up_and_what_it_has_done_counts_later(
    late: tuple[int, ...], tmp_path: Path
) -> None:
    """Nobody would come to an end here where the others waited: it goes on when they have passed the round."""
    words = ("--every=4", "--epochs=2", "--patience=5", f"--marks={tmp_path}", "--late", *map(str, late))
    said = run_plainly(tmp_path, 3, *words)
    assert [int(step) for step in re.findall(r"step (\d+): this rank was late for round", said)] == [8, 12][
        : len(late)
    ]
    found = seen(tmp_path, 3)
    same(found[0], textbook(3, 2, 4, late))
    for other in ((), (6,) if len(late) == 2 else (6, 10)):  # it made a difference
        with pytest.raises(AssertionError):
            same(found[0], textbook(3, 2, 4, other))


def test_alone_there_is_nothing_to_average(tmp_path: Path) -> None:
    subprocess.run([sys.executable, SCRIPT, f"--out={tmp_path}"], check=True, timeout=PATIENCE_SECONDS)
    same(seen(tmp_path, 1)[0], textbook(1, 2, 4))


def test_a_model_whose_ranks_exchange_gradients_is_refused(tmp_path: Path) -> None:
    said = run_plainly(tmp_path, 2, "--wrap", ok=False)
    assert (
        "model: given one with DistributedDataParallel, whose ranks exchange something with each step" in said
    )


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ({"every": 0}, "every: given 0; allowed: a whole number from 1"),
        ({"every": 2.5}, "every: given 2.5"),
        ({"every": 1, "patience": 0.0}, "patience: given 0.0; allowed: a finite number greater than 0"),
        ({"every": 1, "patience": math.nan}, "patience: given nan"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(numbers: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(told)):
        LocalSGD(torch.nn.Linear(1, 1), (), Collectives(0, 1, None), step=0, **{"patience": None, **numbers})


def test_there_has_to_be_something_to_average(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidInput, match=r"call run\.average once, after run\.restore\(model, optimizer\)"):
        elastic.init().average(every=4)


async def test_killed_it_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    ends = []
    for killed in (False, True):
        folder = tmp_path / str(killed)
        folder.mkdir()
        spec = training(command=(SCRIPT, "--every=3", "--epochs=3", "--step-seconds=0.1", f"--out={folder}"))
        async with driving(folder / "run", spec) as driven:
            if killed:
                await driven.until(lambda driven=driven: checkpoints.steps(driven.run.store), "a checkpoint")
                driven.kill_rank(1)
            state = await driven.end()
        assert (state.outcome, state.restarts_used) == ("succeeded", int(killed)), state.reason
        assert left_over(folder / "run") == []
        ends.append(seen(folder, 2))
    assert ends[0] == ends[1]


async def test_with_run_train_a_rank_that_averages_goes_on_in_a_new_process(tmp_path: Path) -> None:
    """Averaging has a thread of its own, which belongs to its generation. A rank that waits for a round is ended."""
    words = ("--every=3", "--epochs=6", "--step-seconds=0.1", f"--out={tmp_path}", "--stay")
    async with driving(tmp_path / "run", training(command=(SCRIPT, *words))) as driven:
        await driven.until(lambda: checkpoints.steps(driven.run.store), "a checkpoint")
        (before,) = driven.called("rank-0")
        driven.kill_rank(1)
        await driven.gone_on_in(2)
        (after,) = driven.called("rank-0")
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    assert after != before
    found = seen(tmp_path, 2)
    assert found[0] == found[1]
    assert left_over(tmp_path / "run") == []


@pytest.mark.slow
async def test_rescaled_and_killed_each_sample_counts_once(tmp_path: Path) -> None:
    policy = CheckpointPolicy(every_steps=5, account_samples=True)
    words = ("--every=3", "--epochs=8", "--step-seconds=0.05", "--patience=0.5", f"--out={tmp_path}")
    spec = training(command=(SCRIPT, *words), workers=Workers(2, min=1, max=3), checkpoint=policy)
    async with driving(tmp_path / "run", spec) as driven:
        await driven.until(lambda: checkpoints.steps(driven.run.store), "a checkpoint")
        driven.kill_rank(1)
        await driven.until(lambda: len(driven.state.attempts) == 2, "attempt 2")
        progress = driven.run.progress
        await driven.until(lambda: (p := progress(driven.state)) and p.attempt == 2 and p.step, "a step")
        driven.run.ask_scale(3, by="test")
        state = await driven.end()
    assert (state.outcome, state.restarts_used) == ("succeeded", 1), state.reason
    assert len(seen(tmp_path, 3)) == 3
    proof = prove(read_accounts(driven.run.store), state.attempts[-1].last_step)
    assert proof.holds, proof
    assert left_over(tmp_path / "run") == []


async def test_what_is_asked_for_is_done_at_a_round(tmp_path: Path) -> None:
    policy = CheckpointPolicy(every_steps=100_000)
    spec = training(command=(SCRIPT, "--every=4", "--epochs=1000", "--step-seconds=0.02"), checkpoint=policy)
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(10)
        driven.run.ask_save(by="test")
        await driven.until(lambda: checkpoints.steps(driven.run.store), "a save")
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert state.outcome == "stopped"
    steps = checkpoints.steps(driven.run.store)
    assert steps[-1] == state.attempts[-1].last_step
    assert [step % 4 for step in steps] == [0, 0]
