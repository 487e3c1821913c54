"""Real training on the local engine: what is killed comes back, and what comes back is the same run."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.sample_accounts import read_accounts
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.core.checkpoints.sample_accounts import prove
from airflow_elastic.core.state import FailureKind
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import Workers
from tests.support.doom import PHASES, Doom, order
from tests.support.driving import SCRIPTS, driving, left_over, plain, training
from tests.support.machine import leaks
from tests.support.machine.patience import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Those after 12 epochs."""
    return plain(tmp_path_factory.mktemp("plain"), "--epochs=12")


async def test_success_is_the_same_training_as_under_plain_torchrun(tmp_path: Path, undisturbed: str) -> None:
    spec = training("--epochs=12", f"--out={tmp_path}/out")
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 1)
    assert (tmp_path / "out").read_text() == undisturbed
    status = driven.run.status()
    assert (status["step"], status["total_steps"], status["samples"]["seen"]) == (120, 120, 12 * 640)  # type: ignore[index]
    kept = checkpoints.steps(driven.run.store)
    assert kept[-1] == 120
    assert len(kept) == 3  # steps whose turn came while the one before was being written are left out
    assert all(step % 5 == 0 for step in kept)
    assert left_over(tmp_path / "run") == []


def in_all_tiers(folder: Path) -> dict[str, Any]:
    """Most of what is saved is in memory only, some on disk, and little in storage."""
    return {
        "every_steps": 25,
        "memory_every_steps": 2,
        "buddies": True,
        "disk": f"{folder}",
        "disk_every_steps": 6,
    }


def at_random(tiers: str, words: str, kills: int) -> Any:
    # Of every commit: a death in each phase (below), and one of a sharded training (`at_any_world_size`).
    marks = [pytest.mark.slow, pytest.mark.timeout(3600)]
    return pytest.param(tiers, words, kills, marks=marks, id=f"{tiers}{words}-{kills}")


@pytest.mark.parametrize(
    ("tiers", "words", "kills"),
    [
        at_random("storage", "", 50),
        at_random("all", "", 50),
        at_random("storage", "--sharded", 50),
        at_random("all", "--sharded", 50),
    ],
)
async def test_killed_at_random_it_ends_bit_identical(
    tiers: str, words: str, kills: int, tmp_path: Path
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    luck, memory = random.Random(seed), leaks.SharedMemory()
    for name in ("plain", "disk"):
        (tmp_path / name).mkdir()
    undisturbed = await asyncio.to_thread(plain, tmp_path / "plain", "--epochs=12", *words.split())
    saves = in_all_tiers(tmp_path / "disk") if tiers == "all" else {"every_steps": 5}
    policy = CheckpointPolicy(**saves, overlap=luck.random() < 0.5)
    words_of_all = ("--epochs=12", "--step-seconds=0.1", f"--out={tmp_path}/out", *words.split())
    async with driving(tmp_path / "run", training(*words_of_all, checkpoint=policy)) as driven:
        await driven.killed_at_random(kills, luck)
        state = await driven.end()
    assert state.outcome == "succeeded", f"seed {seed}: {state.reason}"
    assert len(state.attempts) == kills + 1, f"seed {seed}"
    kinds = {attempt.failure.kind for attempt in state.attempts if attempt.failure}
    assert kinds <= {FailureKind.WORKER_LOST, FailureKind.KILLED}, f"seed {seed}"
    assert (tmp_path / "out").read_text() == undisturbed, f"seed {seed}"
    assert left_over(tmp_path / "run") == []
    assert (memory.leaks(), leaks.half_written(tmp_path)) == ([], []), f"seed {seed}"


@pytest.mark.siblings("killed, it ends bit-identical")
@pytest.mark.parametrize("each", [1, pytest.param(9, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
async def test_killed_in_every_phase_it_ends_bit_identical(
    each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    luck, kills, epochs = random.Random(seed), each * len(PHASES), 12 * each
    phases = list(PHASES) * each
    luck.shuffle(phases)
    # Of 120 steps for 6 deaths: each costs a save or two at most, so the last one still finds it training.
    orders = [order(phase, luck.randint(1, 10 * number), luck) for number, phase in enumerate(phases, 1)]
    (tmp_path / "plain").mkdir()
    undisturbed = await asyncio.to_thread(plain, tmp_path / "plain", f"--epochs={epochs}")
    doom, memory = Doom(tmp_path / "doom", monkeypatch), leaks.SharedMemory()
    doom.give(*orders)
    policy = CheckpointPolicy(every_steps=5, overlap=luck.random() < 0.5)
    spec = training(f"--epochs={epochs}", f"--out={tmp_path}/out", checkpoint=policy)
    async with driving(tmp_path / "run", spec) as driven:
        state = await asyncio.wait_for(driven.task, PATIENCE_SECONDS + 60 * kills)
    told = f"seed {seed}, {doom.hits()}, {state.reason}"
    assert state.outcome == "succeeded", told
    assert [hit["phase"] for hit in doom.hits()] == phases, told
    assert len(state.attempts) == kills + 1, told
    kinds = {attempt.failure.kind for attempt in state.attempts if attempt.failure}
    assert kinds <= {FailureKind.WORKER_LOST, FailureKind.KILLED}, told
    assert (tmp_path / "out").read_text() == undisturbed, told
    assert left_over(tmp_path / "run") == []
    assert (memory.leaks(), leaks.half_written(tmp_path)) == ([], []), told
    assert checkpoint_retention.uncommitted(driven.run.store, before_attempt=len(state.attempts)) == [], told


@pytest.mark.siblings("killed, it ends bit-identical")
@pytest.mark.parametrize(
    "worlds", [(2, 1), pytest.param((2, 3, 2, 1, 2), marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
async def test_killed_and_rescaled_it_ends_bit_identical(
    worlds: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As runs do to which nothing happens, each going on at the very step from which there were other ranks."""
    seed = random.SystemRandom().getrandbits(32)
    luck = random.Random(seed)
    phases = [luck.choice(list(PHASES)) for _ in worlds]
    words = ("--epochs=12", "--step-seconds=0.05", "--same-order", f"--out={tmp_path}/out")
    with monkeypatch.context() as patch:
        doom = Doom(tmp_path / "doom", patch)
        doom.give(*(order(phase, 1, luck, world) for phase, world in zip(phases, worlds, strict=True)))
        async with driving(tmp_path / "run", training(*words)) as driven:
            for attempt, workers in enumerate(worlds[1:], 2):  # of each size one dies
                await driven.until(lambda n=attempt: len(driven.state.attempts) == n, f"attempt {attempt}")  # type: ignore[misc]
                await driven.gone_on()
                await driven.scaled(workers)
            state = await driven.end()
    told = f"seed {seed}, {doom.hits()}, {doom.began()}, {state.reason}"
    assert state.outcome == "succeeded", told
    assert [(hit["phase"], hit["world"]) for hit in doom.hits()] == [*zip(phases, worlds, strict=True)], told
    assert [world for world, _ in doom.began()] == list(worlds), told
    assert (tmp_path / "out").read_text() == await _in_legs(tmp_path, doom.began()), told


async def _in_legs(folder: Path, began: list[tuple[int, int]]) -> str:
    """The weights of runs that follow each other: each is a new one, which begins with one checkpoint of the last."""
    leg = out = folder
    for (world, begin), (_, end) in zip(began, [*began[1:], (0, 120)], strict=True):
        old, leg = leg, folder / f"leg-{begin}"
        if begin:
            data = checkpoints.read(open_store(str(old)), begin).data
            shutil.copytree(old / data, leg / data)
            (manifest := leg / layout.manifest(begin)).parent.mkdir(parents=True)
            shutil.copy(old / layout.manifest(begin), manifest)
        policy = CheckpointPolicy(every_steps=end, keep_last=1000)
        out = folder / f"out-{begin}"
        words = ("--epochs=12", "--same-order", f"--out={out}")
        async with driving(leg, training(*words, checkpoint=policy, workers=Workers(world, min=1))) as driven:
            state = await driven.end()
        assert (state.outcome, len(state.attempts)) == ("succeeded", 1), state.reason
    return out.read_text()


async def test_a_lost_worker_costs_what_came_after_the_newest_state_in_its_buddys_memory(
    tmp_path: Path, undisturbed: str
) -> None:
    policy = CheckpointPolicy(every_steps=1000, memory_every_steps=2, buddies=True)
    words = ("--epochs=12", "--step-seconds=0.05", f"--out={tmp_path}/out")
    async with driving(tmp_path / "run", training(*words, checkpoint=policy)) as driven:
        await driven.at_step(20)
        assert checkpoints.steps(driven.run.store) == []
        driven.kill_node(1)
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    before, after = state.attempts
    assert before.failure is not None
    assert before.failure.kind is FailureKind.WORKER_LOST
    assert after.restored_at >= before.last_step - 8 > 0
    assert (tmp_path / "out").read_text() == undisturbed
    assert left_over(tmp_path / "run") == []


async def test_what_was_read_back_whole_stays_until_another_one_was(tmp_path: Path) -> None:
    """The newest ones are committed, and nobody has ever read them."""
    policy = CheckpointPolicy(every_steps=5, keep_last=1)
    async with driving(
        tmp_path / "run", training("--epochs=8", "--step-seconds=0.05", checkpoint=policy)
    ) as driven:
        begins = []
        for attempt in (2, 3):
            await driven.until(lambda: checkpoints.steps(driven.run.store), "a checkpoint")
            driven.kill_nodes(0, 1)  # and with them what was in memory
            await driven.until(lambda n=attempt: len(driven.state.attempts) == n, f"attempt {attempt}")  # type: ignore[misc]
            begins.append(await driven.gone_on())
            await driven.at_step(begins[-1] + 10)
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 3)
    assert 0 < begins[0] < begins[1] < 80
    assert checkpoints.steps(driven.run.store) == [begins[1], 80]


async def test_rescaled_in_place_every_sample_is_consumed_once(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    policy = CheckpointPolicy(every_steps=5, account_samples=True)
    words = ("--epochs=12", "--step-seconds=0.05", f"--samples={tmp_path}/samples")
    async with driving(tmp_path / "run", training(*words, checkpoint=policy)) as driven:
        await driven.at_step(12)
        survivor = driven.files.agent(0)
        driven.run.ask_scale(3, by="test")
        await driven.until(lambda: len(_stretches(driven)) == 2 and driven.step > 30, "three ranks at work")
        driven.run.ask_scale(1, by="test")
        await driven.until(lambda: len(_stretches(driven)) == 3 and driven.step_now > 60, "one rank at work")
        driven.kill_worker(0)
        assert driven.state.attempts[0].number == 1
        await driven.until(lambda: len(driven.state.attempts) == 2, "a second attempt")
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    first, second = state.attempts
    assert first.progress is not None
    assert [stretch.world_size for stretch in first.progress.stretches] == [2, 3, 1]
    # A scale step saves where it stops: nothing is done twice.
    ends = [(stretch.from_step, stretch.to_step) for stretch in first.progress.stretches]
    assert ends[0][1] == ends[1][0]
    assert ends[1][1] == ends[2][0]
    assert (second.workers, state.restarts_used) == (1, 1)
    assert survivor is not None
    _each_sample_once(tmp_path / "samples", resumed_at={2: second.restored_at})
    # And so it can be proved from what the run itself keeps.
    proof = prove(read_accounts(driven.run.store), state.checkpoint.step if state.checkpoint else 0)
    assert proof.holds
    assert [(epoch.counted, epoch.length, epoch.complete) for epoch in proof.epochs] == [
        (640, 640, True)
    ] * 12
    assert {size for epoch in proof.epochs for size in epoch.world_sizes} == {2, 3, 1}
    command = [sys.executable, "-m", "airflow_elastic.cli", "verify", str(tmp_path / "run"), "--samples"]
    told = (await asyncio.to_thread(subprocess.check_output, command)).decode()
    assert f"{12 * 640} samples of 120 steps: each counts exactly once" in told
    assert left_over(tmp_path / "run") == []


async def test_left_to_itself_it_saves_as_often_as_pays(tmp_path: Path) -> None:
    policy = CheckpointPolicy(auto_interval=True, every_seconds=1.0)
    spec = training("--epochs=8", "--step-seconds=0.05", checkpoint=policy)  # four seconds at the least
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    assert state.checkpoints >= 2, "only the last one was saved"
    (log,) = (tmp_path / "run").glob("logs/*/*-rank-0.log")
    assert "saving every 1 s from now on: a save stops training for" in log.read_text()


@pytest.mark.parametrize(
    ("words", "worlds"),
    [
        ((), (3, 1)),
        pytest.param(("--hybrid",), (4,), marks=pytest.mark.slow),
        pytest.param((), (3, 1, 2), marks=pytest.mark.slow),
        pytest.param(("--hybrid",), (4, 3, 4, 2), marks=pytest.mark.slow),
    ],
)
async def test_a_sharded_model_comes_back_bit_for_bit_at_any_world_size(
    words: tuple[str, ...], worlds: tuple[int, ...], tmp_path: Path
) -> None:
    steps = 50 + 20 * len(worlds)
    command = (
        str(SCRIPTS / "sharded.py"),
        f"--trace={tmp_path}/trace",
        f"--steps={steps}",
        "--step-seconds=0.05",
        *words,
    )
    async with driving(tmp_path / "run", training(command=command)) as driven:
        await driven.at_step(8)
        for workers in worlds:
            driven.run.ask_scale(workers, by="test")
            known = len(_stretches(driven))
            await driven.until(
                lambda known=known: len(_stretches(driven)) > known, f"{workers} ranks at work"
            )
        driven.kill_worker(0)
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    lines = [line.split() for line in (tmp_path / "trace").read_text().splitlines()]
    restored = [(step, world, digest) for word, step, world, digest in lines if word == "restored"]
    assert [int(world) for _, world, _ in restored] == [*worlds, worlds[-1]]
    for step, world, digest in restored:
        saved = {one for word, at, _, one in lines if (word, at) == ("did", step)}
        assert digest in saved, f"the state of step {step} is another one on {world} ranks"


@pytest.mark.parametrize(
    "wraps",
    [
        ("ddp", "fsdp", "ddp"),
        pytest.param(("ddp",) * 3, marks=pytest.mark.slow),
        pytest.param(("fsdp",) * 3, marks=pytest.mark.slow),
    ],
    ids=["ddp and fsdp", "ddp", "fsdp"],
)
async def test_what_ddp_has_saved_fsdp_goes_on_with_bit_for_bit_and_back(
    wraps: tuple[str, ...], tmp_path: Path
) -> None:
    """The weights of all models and the states of all optimizers, by their names, on 2, 3 and again 2 ranks."""
    wrap = [f"--wrap={wraps[0]}"] if len({*wraps}) == 1 else []
    command = (str(SCRIPTS / "changing/rewrapped.py"), f"--trace={tmp_path}/trace", *wrap)
    async with driving(tmp_path / "run", training(command=command)) as driven:
        await driven.at_step(5)
        for stretch, workers in enumerate((3, 2), start=2):
            driven.run.ask_scale(workers, by="test")
            await driven.until(
                lambda stretch=stretch: len(_stretches(driven)) == stretch, f"{workers} ranks at work"
            )
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    lines = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    restored = [line for line in lines if line["word"] == "restored"]
    assert [line["wrap"] for line in restored] == [*wraps[1:]]
    for line, other in zip(restored, wraps, strict=False):
        (did,) = (one for one in lines if (one["word"], one["step"]) == ("did", line["step"]))
        assert did["wrap"] == other
        assert line["state"] == did["state"], f"step {line['step']}"
        assert {name.split()[-1] for name in did["state"] if " " in name} == {"exp_avg", "exp_avg_sq", "step"}
        assert len(did["state"]) == 2 * 6 * 4 + 6


def _stretches(driven):  # type: ignore[no-untyped-def]
    progress = driven.run.progress(driven.state)
    return [s for s in progress.stretches if s.first_step_at] if progress else []


def _each_sample_once(folder: Path, resumed_at: dict[int, int]) -> None:
    """Of the steps that count: an attempt's steps after the one that the next attempt resumed at were done again."""
    consumed: dict[int, list[int]] = defaultdict(list)
    for path in folder.iterdir():
        attempt = int(path.name.split("-")[0][1:])
        for line in path.read_text().splitlines():
            step, *samples = map(int, line.split())
            if step <= resumed_at.get(attempt + 1, 10**9):
                consumed[(step - 1) // 10] += samples
    assert sorted(consumed) == list(range(12))
    for epoch, samples in consumed.items():
        assert sorted(samples) == list(range(640)), f"epoch {epoch}"
