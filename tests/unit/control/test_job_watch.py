"""A controller whose sight of the workers fails for a while, and what it hears all the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from airflow_elastic.adapters.records.mailbox import CheckpointTrouble, Mailbox, RankTrouble
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli.drive.progress_lines import progress_line
from airflow_elastic.control.job_watch import JobWatch
from airflow_elastic.control.runs import Run
from airflow_elastic.core.state import CheckpointProblem
from airflow_elastic.engines.api import Job
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import EngineError, SubmitRefused
from airflow_elastic.spec.status import Progress, WorkerPhase, WorkerStatus
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.builders import rank, spec, story, worker
from tests.support.driving import Listener, controlled
from tests.support.machine.patience import until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from airflow_elastic.spec.status import JobStatus


class Blind(FakeEngine):
    """Its watch fails a few times before it works, each time after a first look or without one."""

    def __init__(self, failures: int, *, after_a_look: bool = False) -> None:
        self.failures, self.after_a_look = failures, after_a_look

    async def watch(self, job: Job) -> AsyncIterator[JobStatus]:
        async for status in super().watch(job):
            if self.failures > 0 and not self.after_a_look:
                self.failures -= 1
                raise EngineError("the API server does not answer")
            yield status
            if self.failures > 0:
                self.failures -= 1
                raise EngineError("the API server has gone away")


@pytest.mark.parametrize("after_a_look", [False, True])
async def test_a_watch_that_fails_is_told_and_tried_again(tmp_path: Path, after_a_look: bool) -> None:
    engine, heard = Blind(3, after_a_look=after_a_look), Listener()
    async with controlled(tmp_path / "run", engine, heard) as run:
        await until_async(lambda: len(heard.troubles) == 3, "the third trouble")
        assert {text for text, _, _ in heard.troubles} <= {
            "the API server does not answer",
            "the API server has gone away",
        }
        await until_async(lambda: engine.failures == 0, "a watch that works")
        state = run.state
        assert (state.label, len(state.attempts), state.restarts_used) == ("running", 1, 0)
        engine.finish(state.attempt.job or "")
        await until_async(lambda: run.state.ended, "the end")
        assert run.state.outcome == "succeeded"
    assert [times for _, times, _ in heard.troubles] == [1, 2, 3]
    assert heard.troubles[2][2] > heard.troubles[0][2], "each further pause is longer"


async def test_who_cannot_see_the_workers_still_hears_requests(tmp_path: Path) -> None:
    """With the pause in the controller's own loop a stop would wait for it, for up to 30 s."""
    engine, heard = Blind(1000), Listener()
    async with controlled(tmp_path / "run", engine, heard) as run:
        await until_async(
            lambda: heard.troubles and heard.troubles[-1][1] >= 3, "a pause of more than a second"
        )
        looks = heard.looks
        await until_async(lambda: heard.looks > looks + 3, "a look around")
        run.ask_stop(by="ada")
        await until_async(lambda: run.state.ended, "the end")
        assert (run.state.outcome, len(run.state.attempts)) == ("stopped", 1)


class Flushing(FakeEngine):
    """Its workers cannot write what they hold when they are told to end."""

    def __init__(self, folder: Path) -> None:
        self.box = Mailbox(open_store(str(folder)))

    async def delete(self, job: Job, grace_seconds: float) -> None:
        trouble = CheckpointTrouble(job.attempt, 300, "no space left")
        self.box.post("unsaved", by="node-1", checkpoint=trouble)
        await super().delete(job, grace_seconds)


async def test_what_a_run_could_not_save_at_its_end_is_told(tmp_path: Path) -> None:
    engine = Flushing(tmp_path / "run")
    async with controlled(tmp_path / "run", engine, Listener()) as run:
        await until_async(lambda: run.state.label == "running", "its workers")
        run.ask_stop(by="ada")
        await until_async(lambda: run.state.ended, "the end")
    assert run.state.unsaved == CheckpointProblem(300, "node-1", "no space left", attempt=1)
    assert engine.box.read() == []


def test_ranks_that_have_not_restored_yet_do_not_put_the_step_back() -> None:
    state = story(ev.AttemptSubmitted(1.0, 1, "a"), ev.CheckpointCommitted(2.0, 1, 100, "k"))
    told = Progress(1, 3.0, step=0, total_steps=200, attached=True)
    assert "step 100/200 · 50 % ·" in progress_line(state, told)


async def test_a_peers_word_that_comes_later_may_be_the_cause(tmp_path: Path) -> None:
    """That a rank lost its peers is often known first; agents tell by way of storage, one after another."""
    engine, peer_gone = FakeEngine(), "RuntimeError: Connection closed by peer [10.0.0.2]:3344"
    async with controlled(tmp_path, engine, Listener()) as run:
        await until_async(lambda: run.state.attempt.submitted_at, "the workers")
        mailbox = Mailbox(run.store)

        def tell(name: str, error: str) -> None:
            failed = worker(name=name, errors=(rank(1, error=error),))
            mailbox.post("failed", by=name, ranks=RankTrouble(1, failed, 7))

        tell("node-0", peer_gone)
        await until_async(lambda: run.state.attempts[0].failed, "the first word")
        tell("node-1", "ValueError: bad")
        await until_async(lambda: run.state.attempts[0].failure, "the judgement")
        failure = run.state.attempts[0].failure
        await until_async(
            lambda: len(run.state.attempts) == 2 and run.state.attempt.submitted_at, "the next one"
        )
        assert engine.jobs[run.state.attempts[0].job or ""].rejoined == [2]
    assert failure is not None
    assert (failure.kind, failure.worker, failure.error) == ("code error", "node-1", "ValueError: bad")


class Refusing(FakeEngine):
    """Shows a lost worker that can be replaced, and does not do it."""

    def __init__(self, error: EngineError) -> None:
        self._error = error

    async def rejoin(self, job: Job, attempt: int, lost: tuple[int, ...] = ()) -> tuple[int, ...]:
        raise self._error


async def lose_one(engine: FakeEngine, run: Run) -> None:
    await until_async(lambda: run.state.attempt.submitted_at, "the workers")
    lost = WorkerStatus("node-1", WorkerPhase.LOST, replaceable=True)
    engine.end_worker(run.state.attempt.job or "", 1, lost)


async def test_where_a_lost_worker_is_not_replaced_after_all_a_new_job_follows(tmp_path: Path) -> None:
    engine = Refusing(SubmitRefused("the size of this job may not change"))
    async with controlled(tmp_path, engine, Listener()) as run:
        await lose_one(engine, run)
        await until_async(
            lambda: len(run.state.attempts) == 3 and run.state.attempt.submitted_at, "a job of its own"
        )
        assert (run.state.attempt.home, run.state.restarts_used) == (None, 1)


async def test_a_stop_is_heard_while_the_engine_is_out_of_reach(tmp_path: Path) -> None:
    engine = Refusing(EngineError("the API server is away"))
    async with controlled(tmp_path, engine, Listener()) as run:
        await lose_one(engine, run)
        await until_async(lambda: len(run.state.attempts) == 2, "the next attempt, which cannot begin")
        run.ask_stop(by="test")
        await until_async(lambda: run.state.ended, "the end")
    assert run.state.outcome == "stopped"


async def test_a_save_that_is_asked_for_meanwhile_is_done_when_somebody_can(tmp_path: Path) -> None:
    engine = Refusing(EngineError("the API server is away"))
    async with controlled(tmp_path, engine, Listener()) as run:
        await lose_one(engine, run)
        await until_async(lambda: len(run.state.attempts) == 2, "the next attempt, which cannot begin")
        run.ask_save(by="test")
        run.ask_scale(3, by="test")
        await until_async(lambda: run.state.target == 3, "what can be noted")
        mailbox = Mailbox(run.store)
        await until_async(lambda: [one.kind for one in mailbox.read()] == ["save"], "the other to be taken")


async def test_what_the_last_attempt_left_half_written_goes_with_the_run(tmp_path: Path) -> None:
    """Nobody comes after it who would do that."""
    engine, heard = FakeEngine(), Listener()
    async with controlled(tmp_path / "run", engine, heard) as run:
        await until_async(lambda: run.state.attempt.job, "the workers")
        left = layout.checkpoint_data(7, 1, 1) + "rank-00000.bin"
        temp = tmp_path / "run" / layout.attempt_logs(1) / ".elastic-tmp-g01-rank-0.log-0-0"
        run.store.put(left, b"half")
        temp.parent.mkdir(parents=True)
        temp.write_bytes(b"half")
        run.ask_stop(by="ada")
        await until_async(lambda: run.state.ended, "the end")
    assert run.state.outcome == "stopped"
    assert run.store.list(layout.CHECKPOINT_DATA) == []
    assert not temp.exists()


class Reluctant(FakeEngine):
    """Takes its time over the end of a watch."""

    def __init__(self) -> None:
        super().__init__()
        self.ending, self.may_end = asyncio.Event(), asyncio.Event()

    async def watch(self, job: Job) -> AsyncIterator[JobStatus]:
        try:
            async for status in super().watch(job):
                yield status
        finally:
            self.ending.set()
            await self.may_end.wait()


async def test_who_is_cancelled_while_a_watch_ends_ends_too() -> None:
    """Or a controller would drive on for ever, whoever has told it to leave."""
    engine = Reluctant()
    job = Job("run", spec(), 1, 2)
    await engine.submit(job)
    watching = JobWatch(engine, asyncio.Event(), lambda error, times: asyncio.sleep(0))
    watching.begin(1, job, 1.0)
    await until_async(lambda: watching.status, "the watch")
    leaving = asyncio.create_task(watching.end())
    await engine.ending.wait()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    engine.may_end.set()
    await watching.end()
