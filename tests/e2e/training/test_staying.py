"""Ranks in `run.train` outlive their generation: the same process goes on, and ends with the same bytes."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.core.state import FailureKind, RunState
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
from tests.support.driving import SCRIPTS, Driven, driving, left_over, plain, training
from tests.support.machine import leaks, usage

#: None within these tests, except at the end of a function.
NONE = CheckpointPolicy(every_steps=100_000)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return plain(tmp_path_factory.mktemp("plain"), "--epochs=12")


def pid_of(driven: Driven, rank: int) -> int:
    (process,) = driven.called(f"rank-{rank}")
    return process.pid


def log_of(uri: Path, generation: int, rank: int = 0) -> str:
    """What a rank has printed in this generation, where each attempt has one."""
    log = open_store(f"{uri}").local_path(layout.attempt_logs(generation) + layout.rank_log(generation, rank))
    assert log is not None
    return log.read_text()


@pytest.mark.parametrize(
    ("lose", "words", "procs", "stayed"),
    [
        pytest.param(Driven.kill_rank, (), 1, 1, id="rank"),
        pytest.param(Driven.kill_worker, (), 1, 1, id="agent"),
        pytest.param(Driven.kill_rank, ("--sharded",), 2, 3, id="rank-of-several-sharded"),
    ],
)
async def test_one_that_is_killed_takes_no_other_along(
    lose: Callable[[Driven, int], None], words: tuple[str, ...], procs: int, stayed: int, tmp_path: Path
) -> None:
    (tmp_path / "plain").mkdir()
    ranks = 2 * procs
    undisturbed = await asyncio.to_thread(plain, tmp_path / "plain", "--epochs=6", *words, ranks=ranks)
    words = ("--epochs=6", "--step-seconds=0.1", "--stay", f"--out={tmp_path}/out", *words)
    spec = training(*words, workers=Workers(2, min=1, max=4, procs=procs))
    async with driving(tmp_path / "run", spec) as driven:
        await driven.until(lambda: driven.step_now >= 20, "step 20")
        before = [pid_of(driven, rank) for rank in range(ranks - 1)]
        lose(driven, 1 if procs == 1 else ranks - 1)
        await driven.gone_on_in(2)
        assert [pid_of(driven, rank) for rank in range(ranks - 1)] == before
        state = await driven.end()
        events = Journal(driven.run.store).read()
        (back,) = [event for event in events if isinstance(event, ev.Recovered)]
        assert (back.stayed, back.ranks) == (stayed, ranks)
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    assert (tmp_path / "out").read_text() == undisturbed
    assert left_over(tmp_path / "run") == []


async def test_it_goes_on_from_a_state_that_only_its_memory_had(tmp_path: Path, undisturbed: str) -> None:
    """Storage has no checkpoint at all when the peer is killed."""
    words = ("--epochs=12", "--step-seconds=0.05", "--stay", "--verbose", f"--out={tmp_path}/out")
    policy = CheckpointPolicy(every_steps=100_000, memory_every_steps=2)
    async with driving(tmp_path / "run", training(*words, checkpoint=policy)) as driven:
        await driven.until(lambda: driven.step_now >= 20, "step 20")
        before = pid_of(driven, 0)
        assert checkpoints.steps(driven.run.store) == []
        driven.kill_rank(1)
        await driven.gone_on_in(2)
        from_step = await driven.gone_on()
        assert pid_of(driven, 0) == before
        state = await driven.end()
    assert (from_step >= 18, from_step % 2) == (True, 0), from_step
    assert state.outcome == "succeeded", state.reason
    log = log_of(tmp_path / "run", 2)
    read = re.search(rf"checkpoint {from_step} was read in .* s: (\S+ \w+) from this worker's memory", log)
    assert read is not None, log
    assert read[1] != "0 B"
    assert (tmp_path / "out").read_text() == undisturbed


async def test_without_a_checkpoint_it_begins_anew_in_the_same_process(
    tmp_path: Path, undisturbed: str
) -> None:
    words = ("--epochs=12", "--step-seconds=0.05", "--stay", f"--out={tmp_path}/out")
    async with driving(tmp_path / "run", training(*words, checkpoint=NONE)) as driven:
        await driven.until(lambda: driven.step_now >= 10, "step 10")
        before = pid_of(driven, 0)
        driven.kill_rank(1)
        await driven.until(lambda: driven.step_now >= 1 and len(driven.state.attempts) == 2, "a new step")
        assert pid_of(driven, 0) == before
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    assert (tmp_path / "out").read_text() == undisturbed


async def test_a_scale_step_keeps_the_ranks_that_are_there(tmp_path: Path) -> None:
    spec = training("--epochs=60", "--step-seconds=0.05", "--stay")
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(10)
        before = [pid_of(driven, rank) for rank in (0, 1)]
        await driven.scaled(3)
        assert [pid_of(driven, rank) for rank in (0, 1)] == before
        await driven.scaled(2)
        assert [pid_of(driven, rank) for rank in (0, 1)] == before
        assert len(driven.state.attempts) == 1


async def test_an_error_of_the_script_is_reported_once(tmp_path: Path) -> None:
    spec = training("--stay", "--fail-at=12", restart=RestartPolicy(backoff_limit=0))
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
    failure = state.attempts[-1].failure
    assert failure is not None
    assert (state.outcome, failure.kind) == ("failed", FailureKind.CODE_ERROR)
    assert "a bad batch before step 12" in (failure.error or "")
    assert left_over(tmp_path / "run") == []


async def test_a_rank_that_does_not_leave_is_ended(tmp_path: Path) -> None:
    """Rank 1 stands still outside of collectives, so rank 0 waits for it in one. Rank 0 leaves, rank 1 is replaced."""
    (tmp_path / "plain").mkdir()
    words = ("--epochs=12", "--same-order")
    undisturbed = await asyncio.to_thread(plain, tmp_path / "plain", *words, ranks=3)
    words += ("--stay", "--hang-at=30", "--hang-rank=1", f"--out={tmp_path}/out")
    async with driving(tmp_path / "run", training(*words, workers=Workers(3, min=1, max=4))) as driven:
        await driven.until(lambda: driven.step_now >= 29, "step 29")
        before = [pid_of(driven, rank) for rank in (0, 1)]
        driven.kill_rank(2)
        await driven.gone_on_in(2)
        after = [pid_of(driven, rank) for rank in (0, 1)]
        assert after[0] == before[0]
        assert after[1] != before[1]
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    assert (tmp_path / "out").read_text() == undisturbed


@pytest.fixture(scope="module")
def undisturbed_functions(tmp_path_factory: pytest.TempPathFactory) -> str:
    return plain(tmp_path_factory.mktemp("plain"), script="stays.py")


def functions(folder: Path, *words: str, **changes: Any) -> RunSpec:
    """A run of two functions, of 20 and 40 steps, with a model that is made before them."""
    command = (str(SCRIPTS / "stays.py"), "--step-seconds=0.1", f"--out={folder}/out", *words)
    return training(command=command, **changes)


async def killed_at(step: int, folder: Path, spec: RunSpec) -> RunState:
    """How a run ends that loses rank 1 at this step."""
    async with driving(folder / "run", spec) as driven:
        await driven.until(lambda: driven.step_now >= step, f"step {step}")
        driven.kill_rank(1)
        return await driven.end()


@pytest.mark.parametrize("policy", [CheckpointPolicy(every_steps=5), NONE], ids=["saved", "unsaved"])
async def test_what_is_made_before_stays_and_each_function_is_called_again(
    policy: CheckpointPolicy, tmp_path: Path, undisturbed_functions: str
) -> None:
    """Also if the second function has no checkpoint yet: then the model is put back as the first has left it."""
    state = await killed_at(35, tmp_path, functions(tmp_path, checkpoint=policy))  # of the second function
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    assert (tmp_path / "out").read_text() == undisturbed_functions
    first, second = (calls(tmp_path / "run", generation) for generation in (1, 2))
    assert [call for call, _ in first + second] == [
        "first: call 1",
        "second: call 1",
        "first: call 2",
        "second: call 2",
    ]
    assert len({where for _, where in first + second}) == 1  # the same process, and the same model


async def test_without_a_checkpoint_a_trained_model_is_made_by_a_new_process(
    tmp_path: Path, undisturbed_functions: str
) -> None:
    state = await killed_at(5, tmp_path, functions(tmp_path, checkpoint=NONE))  # of the first function
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    assert (tmp_path / "out").read_text() == undisturbed_functions
    (first,), (again, _) = (calls(tmp_path / "run", generation) for generation in (1, 2))
    assert (first[0], again[0]) == ("first: call 1", "first: call 1")
    assert first[1] != again[1]


async def test_with_a_model_that_is_wrapped_before_it_begins_in_a_new_process(
    tmp_path: Path, undisturbed_functions: str
) -> None:
    """The wrapper has the ranks of its generation. The other ranks of the next one wrap a model of their own."""
    state = await killed_at(35, tmp_path, functions(tmp_path, "--wrap-before"))  # of the second function
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    assert (tmp_path / "out").read_text() == undisturbed_functions
    assert "goes on in a new process: the model is wrapped outside" in log_of(tmp_path / "run", 1)
    first, second = (calls(tmp_path / "run", generation) for generation in (1, 2))
    assert [call for call, _ in first] == [call for call, _ in second] == ["first: call 1", "second: call 1"]
    assert {where for _, where in first}.isdisjoint({where for _, where in second})


async def test_what_was_compiled_before_is_not_compiled_again(tmp_path: Path) -> None:
    """A rank that comes compiles what one does at the first start, and one that stays compiles nothing."""
    command = (str(SCRIPTS / "compiled.py"), "--step-seconds=0.05")
    state = await killed_at(20, tmp_path, training(command=command))
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason

    def graphs(generation: int, rank: int) -> list[tuple[str, str]]:
        log = log_of(tmp_path / "run", generation, rank)
        return re.findall(r"^(\d+) graphs in (\d+)$", log, re.MULTILINE)

    (before, stayed), (former, came) = ([graphs(one, rank) for one in (1, 2)] for rank in (0, 1))
    assert int(before[-1][0]) > 1
    assert {*stayed} == {before[-1]}  # in the same process
    assert (came[-1][0], came[-1][1] != former[-1][1]) == (former[-1][0], True)


async def test_an_error_in_a_later_call_does_not_end_the_run(
    tmp_path: Path, undisturbed_functions: str
) -> None:
    """It may come from what an earlier call has left behind. So a new process calls the function."""
    state = await killed_at(10, tmp_path, functions(tmp_path, "--once"))
    kinds = [attempt.failure.kind for attempt in state.attempts if attempt.failure]
    assert state.outcome == "succeeded", state.reason
    assert kinds == [FailureKind.KILLED, FailureKind.RESTART_ASKED]
    assert "first was called before" in (state.attempts[1].failure.error or "")  # type: ignore[union-attr]
    assert (tmp_path / "out").read_text() == undisturbed_functions


def calls(uri: Path, generation: int) -> list[list[str]]:
    """What rank 0 has printed about its calls: the call, and the process with its model."""
    return [line.split(" in ") for line in log_of(uri, generation).splitlines() if ": call " in line]


def at_random(tiers: str, words: str = "", procs: int = 1, kills: int = 50) -> Any:
    marks = [pytest.mark.slow, pytest.mark.timeout(3600)] if kills > 4 else []
    return pytest.param(tiers, words, procs, kills, marks=marks, id=f"{tiers}{words}-{procs}-{kills}")


@pytest.mark.parametrize(
    ("tiers", "words", "procs", "kills"),
    [
        at_random("memory", kills=4),
        at_random("memory"),
        at_random("storage"),
        at_random("memory", "--sharded", procs=2),
    ],
)
async def test_killed_at_random_it_ends_bit_identical(
    tiers: str, words: str, procs: int, kills: int, tmp_path: Path
) -> None:
    """With states in memory also beside a standby worker, which takes the place of each worker that is lost."""
    seed = random.SystemRandom().getrandbits(32)
    luck, memory = random.Random(seed), leaks.SharedMemory()
    more = {"memory_every_steps": 2, "buddies": True} if tiers == "memory" else {}
    policy = CheckpointPolicy(every_steps=5, overlap=luck.random() < 0.5, **more)
    (tmp_path / "plain").mkdir()
    alike = ("--epochs=12", *words.split())
    undisturbed = await asyncio.to_thread(plain, tmp_path / "plain", *alike, ranks=2 * procs)
    command = (*alike, "--step-seconds=0.1", "--stay", f"--out={tmp_path}/out")
    workers = Workers(2, min=1, max=4, procs=procs, standby=1 if tiers == "memory" else 0)
    async with driving(tmp_path / "run", training(*command, checkpoint=policy, workers=workers)) as driven:
        await driven.killed_at_random(kills, luck)
        state = await driven.end()
    assert state.outcome == "succeeded", f"seed {seed}: {state.reason}"
    assert len(state.attempts) == kills + 1, f"seed {seed}"
    assert (tmp_path / "out").read_text() == undisturbed, f"seed {seed}"
    assert left_over(tmp_path / "run") == []
    assert (memory.leaks(), leaks.half_written(tmp_path)) == ([], []), f"seed {seed}"


@pytest.mark.parametrize("times", [8, pytest.param(150, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
async def test_a_rank_that_stays_many_times_does_not_grow(times: int, tmp_path: Path) -> None:
    """Nor does anything else of the run, or its controller."""
    words, uses = ("--epochs=1000000", "--step-seconds=0.02", "--stay"), list[usage.Use]()
    policy = CheckpointPolicy(every_steps=200, memory_every_steps=2, keep_last=2)
    restart = RestartPolicy(backoff_limit=10_000, backoff_seconds=0.1, backoff_max_seconds=0.2)
    async with driving(tmp_path / "run", training(*words, checkpoint=policy, restart=restart)) as driven:
        await driven.until(lambda: driven.step_now >= 3, "step 3")
        stays = pid_of(driven, 0)
        while len(driven.state.attempts) <= times:
            uses.append(usage.of(tmp_path / "run"))
            number, step = len(driven.state.attempts), driven.step_now
            driven.kill_rank(1)
            await driven.until(
                lambda n=number, s=step: len(driven.state.attempts) > n and driven.step_now > s + 2,  # type: ignore[misc]
                f"attempt {number + 1}",
            )
            assert pid_of(driven, 0) == stays
        driven.run.ask_stop(by="test")
        assert (await driven.end()).outcome == "stopped"
    print(uses)  # noqa: T201
    assert usage.grows(uses) is None, uses
    assert left_over(tmp_path / "run") == []
