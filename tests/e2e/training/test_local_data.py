"""Real ranks on data of several kinds: the same global batches, and so the same curve, whoever trains and fails."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from airflow_elastic.adapters.records.sample_accounts import read_accounts
from airflow_elastic.core.state import FailureKind
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
from tests.support.driving import SCRIPTS, driving, left_over, training
from tests.support.machine.patience import PATIENCE_SECONDS

Curve = dict[int, float]

SCRIPT = str(SCRIPTS / "data/feed.py")
EPOCHS, SAMPLES, STEPS = 3, 345, 33

#: What workers of the loader draw for a sample knows nothing of how many there are.
AUGMENTED = ("--workers=1", "--augment")


def curve_of(file: Path) -> Curve:
    """Loss by step; of steps that were done twice, the last time counts."""
    return {int(step): float(loss) for step, loss in map(str.split, file.read_text().splitlines())}


def plain(folder: Path, ranks: int, *words: str) -> tuple[Curve, str]:
    """The loss curve and the weights when nothing happens: from plain torchrun, without us."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    if ranks == 1:
        command = [sys.executable]
    command += [SCRIPT, *words, f"--curve={folder}/curve", f"--out={folder}/out"]
    subprocess.run(command, check=True, timeout=PATIENCE_SECONDS, capture_output=True)
    return curve_of(folder / "curve"), (folder / "out").read_text()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Curve]:
    """What one rank sees of a kind of data that gets every global batch at once."""
    return cache(lambda kind, *words: plain(tmp_path_factory.mktemp(kind), 1, f"--kind={kind}", *words)[0])


def same(curve: Curve, expected: Curve) -> None:
    assert curve.keys() == expected.keys() == set(range(1, STEPS + 1))
    assert curve == pytest.approx(expected, rel=1e-9)


@pytest.mark.siblings
@pytest.mark.parametrize(
    ("kind", "ranks", "words"),
    [
        ("indexed", 3, ["--micro=4", "--workers=1"]),
        ("indexed", 2, ["--micro=4", "--dynamic", "--lag=1"]),
        pytest.param("indexed", 2, ["--micro=4", "--workers=2", "--augment"], marks=pytest.mark.slow),
        pytest.param("stream", 3, ["--micro=4", "--workers=1"], marks=pytest.mark.slow),
        pytest.param("indexed", 2, ["--micro=4", "--fsdp"], marks=pytest.mark.slow),
        *(
            pytest.param(kind, ranks, words, marks=pytest.mark.slow)
            for kind in ("indexed", "stream")
            for ranks, words in (
                (1, ["--micro=5"]),
                (2, []),
                (2, ["--micro=16"]),
                (2, ["--micro=3"]),
                (3, []),
            )
        ),
    ],
)
def test_the_global_batch_does_not_depend_on_ranks_or_pieces(
    kind: str, ranks: int, words: list[str], tmp_path: Path, expected: Callable[..., Curve]
) -> None:
    curve, _ = plain(tmp_path, ranks, f"--kind={kind}", *words)
    same(curve, expected(kind, *(AUGMENTED if "--augment" in words else ())))


def spec_of(folder: Path, *words: str) -> RunSpec:
    policy = CheckpointPolicy(every_steps=5, account_samples=True)
    more = ("--step-seconds=0.1", f"--curve={folder}/curve", f"--out={folder}/out")
    return training(command=(SCRIPT, *words, *more), checkpoint=policy)


async def proved(uri: Path) -> None:
    command = [sys.executable, "-m", "airflow_elastic.cli", "verify", str(uri), "--samples"]
    told = (await asyncio.to_thread(subprocess.check_output, command)).decode()
    assert f"{EPOCHS * SAMPLES} samples of {STEPS} steps: each counts exactly once" in told


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stream", "indexed"])
async def test_killed_in_the_middle_of_an_epoch_it_ends_bit_identical(
    kind: str, tmp_path: Path, expected: Callable[..., Curve]
) -> None:
    words = (f"--kind={kind}", "--micro=5", "--workers=2", "--augment")
    (tmp_path / "plain").mkdir()
    _, weights = await asyncio.to_thread(plain, tmp_path / "plain", 2, *words)
    async with driving(tmp_path / "run", spec_of(tmp_path, *words)) as driven:
        await driven.until(lambda: driven.state.checkpoint and driven.step_now > 6, "a checkpoint")
        driven.kill_worker(1)
        await driven.until(lambda: len(driven.state.attempts) == 2 and driven.step_now > 18, "step 19")
        driven.kill_rank(0)
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    assert len(state.attempts) == 3
    assert (tmp_path / "out").read_text() == weights
    same(curve_of(tmp_path / "curve"), expected(kind, *AUGMENTED))
    await proved(tmp_path / "run")
    assert left_over(tmp_path / "run") == []


@pytest.mark.parametrize("kind", ["stream", pytest.param("indexed", marks=pytest.mark.slow)])
async def test_rescaled_and_killed_every_sample_counts_once(
    kind: str, tmp_path: Path, expected: Callable[..., Curve]
) -> None:
    spec = spec_of(tmp_path, f"--kind={kind}", "--micro=6", "--workers=1")
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(3)
        driven.run.ask_scale(3, by="test")
        await driven.until(
            lambda: driven.run.status()["world_size"] == 3 and driven.step_now > 8, "three ranks"
        )
        driven.kill_worker(2)
        await driven.until(
            lambda: len(driven.state.attempts) == 2 and driven.step_now > 14, "another attempt"
        )
        driven.run.ask_scale(1, by="test")
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    same(curve_of(tmp_path / "curve"), expected(kind))
    await proved(tmp_path / "run")
    assert left_over(tmp_path / "run") == []


@pytest.mark.slow
async def test_another_order_in_the_middle_of_an_epoch_is_refused(tmp_path: Path) -> None:
    spec = replace(
        spec_of(tmp_path, "--attempt-seed"), restart=RestartPolicy(backoff_limit=1, backoff_seconds=0.1)
    )
    async with driving(tmp_path / "run", spec) as driven:
        await driven.until(lambda: driven.state.checkpoint and driven.step_now > 6, "a checkpoint")
        driven.kill_worker(1)
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("failed", 2)
    failure = state.attempts[-1].failure
    assert failure is not None
    assert failure.kind is FailureKind.BAD_INPUT
    assert "(345 samples, seed 1). The script now has (345 samples, seed 2)" in (failure.error or "")
    assert left_over(tmp_path / "run") == []


@pytest.mark.slow
async def test_who_is_slower_gets_less_and_what_a_lost_worker_had_is_handed_out_again(
    tmp_path: Path, expected: Callable[..., Curve]
) -> None:
    spec = spec_of(tmp_path, "--micro=2", "--dynamic", "--lag=1")
    async with driving(tmp_path / "run", spec) as driven:
        await driven.until(lambda: driven.state.checkpoint and driven.step_now > 6, "a checkpoint")
        driven.kill_worker(1)
        await driven.until(lambda: len(driven.state.attempts) == 2 and driven.step_now > 18, "step 19")
        driven.kill_rank(0)
        await driven.until(lambda: len(driven.state.attempts) == 3 and driven.step_now > 22, "step 23")
        driven.run.ask_scale(3, by="test")
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    same(curve_of(tmp_path / "curve"), expected("indexed"))
    await proved(tmp_path / "run")
    had: dict[int, int] = defaultdict(int)
    for account in read_accounts(driven.run.store):
        had[account.rank] += sum(len(consumed.samples) for consumed in account.steps)
    assert had[1] < had[0]
    assert left_over(tmp_path / "run") == []


# -- torchdata's loader ----------------------------------------------------------------------------------------------

STATEFUL = str(SCRIPTS / "data/stateful.py")


def consumed_in(folder: Path, rank: int) -> list[list[int]]:
    """Samples of each step; of steps that were done twice, the last time counts."""
    lines = [list(map(int, line.split())) for line in (folder / str(rank)).read_text().splitlines()]
    by_step = {step: samples for step, *samples in lines}
    return [by_step[step] for step in range(1, len(by_step) + 1)]


async def test_a_stateful_loader_goes_on_where_each_rank_was(tmp_path: Path) -> None:
    folders = [tmp_path / "plain", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", STATEFUL]
    command += [f"--samples={folders[0]}", f"--out={tmp_path}/plain.out"]
    await asyncio.to_thread(
        subprocess.run, command, check=True, timeout=PATIENCE_SECONDS, capture_output=True
    )

    words = (f"--samples={folders[1]}", f"--out={tmp_path}/out", "--step-seconds=0.1")
    spec = training(command=(STATEFUL, *words), checkpoint=CheckpointPolicy(every_steps=3))
    async with driving(tmp_path / "run", spec) as driven:
        await driven.until(lambda: driven.state.checkpoint and driven.step_now > 4, "a checkpoint")
        driven.kill_worker(1)
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    assert len(state.attempts) == 2
    for rank in (0, 1):
        steps = consumed_in(folders[1], rank)
        assert steps == consumed_in(folders[0], rank)
        for epoch in (steps[:10], steps[10:20], steps[20:]):
            assert sorted(chain(*epoch)) == list(range(80 * rank, 80 * rank + 80))
    assert (tmp_path / "out").read_text() == (tmp_path / "plain.out").read_text()
    assert left_over(tmp_path / "run") == []


@pytest.mark.slow
async def test_a_stateful_loader_is_refused_at_another_world_size(tmp_path: Path) -> None:
    spec = training(command=(STATEFUL, "--step-seconds=0.1"), checkpoint=CheckpointPolicy(every_steps=3))
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(2)
        driven.run.ask_scale(1, by="test")
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("failed", 2)
    failure = state.attempts[0].failure
    assert failure is not None
    assert failure.kind is FailureKind.BAD_INPUT
    assert "was saved by 2 ranks, and there are 1" in (failure.error or "")
    assert "workers.min and workers.max keeps its number of workers. Or use run.loader" in (
        failure.error or ""
    )
    assert left_over(tmp_path / "run") == []


@pytest.mark.slow
async def test_a_run_with_a_stateful_loader_keeps_its_workers_where_the_specification_says_so(
    tmp_path: Path,
) -> None:
    spec = replace(training(command=(STATEFUL, "--epochs=1", "--step-seconds=0.1")), workers=Workers(2))
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(2)
        with pytest.raises(SpecError, match=r"workers: .*1.*allowed.*2"):
            driven.run.ask_scale(1, by="test")
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    assert [len(state.attempts), state.attempts[0].workers] == [1, 2]
    assert left_over(tmp_path / "run") == []


# -- data that can only be iterated ----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_what_can_only_be_iterated_is_gone_on_with_in_slices(
    tmp_path: Path, expected: Callable[..., Curve]
) -> None:
    spec = spec_of(tmp_path, "--kind=iterated", "--workers=2", "--augment")
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(5)  # in the middle of an epoch
        driven.run.ask_scale(3, by="test")
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    same(curve_of(tmp_path / "curve"), expected("iterated", *AUGMENTED))
    await proved(tmp_path / "run")
    assert left_over(tmp_path / "run") == []
