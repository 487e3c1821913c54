"""A test suite for engines, also for those of other packages.

Subclass `EngineConformance`. Give it an `engine`, and a `make_spec` for a program that runs until it is ended. Let
pytest collect the subclass (with asyncio_mode=auto):

    class TestMyEngine(EngineConformance):
        @pytest.fixture
        def engine(self): return MyEngine()
        @pytest.fixture
        def uri(self, tmp_path): return str(tmp_path / "run")
        def make_spec(self, **changes): return RunSpec(command=("forever.py",), **changes)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, cast

from airflow_elastic.engines.api import Engine, Job, MeasuresCapacity
from airflow_elastic.spec.errors import EngineError
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.status import JobStatus, WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.engines.api import StandingBy

#: How long a test waits for a state before it says that it did not come.
PATIENCE_SECONDS = 300.0


async def until(engine: Engine, job: Job, holds: Callable[[JobStatus], bool]) -> JobStatus:
    """The first snapshot for which `holds` is true. Raises AssertionError with the last one when none comes."""
    status = JobStatus()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for status in engine.watch(job):
                if holds(status):
                    return status
    raise AssertionError(f"the state that was waited for did not come; the last one is {status}")


def running(workers: int) -> Callable[[JobStatus], bool]:
    """Whether so many workers run, and no other is still to come."""

    def holds(status: JobStatus) -> bool:
        phases = [worker.phase for worker in status.workers if worker.phase is not WorkerPhase.LEFT]
        return phases == [WorkerPhase.RUNNING] * workers

    return holds


def standby_running(index: int) -> Callable[[JobStatus], bool]:
    """Whether this is the only standby worker, and runs."""
    return lambda status: (
        [(one.index, one.phase) for one in status.standby_workers] == [(index, WorkerPhase.RUNNING)]
    )


class EngineConformance:
    """The suite. Each test takes the fixtures `engine` and `uri`."""

    def make_spec(self, **changes: Any) -> RunSpec:
        """A specification whose program runs until it is ended."""
        raise NotImplementedError("return a specification for your engine in the subclass")

    def job(self, uri: str, attempt: int = 1, workers: int = 2) -> Job:
        """An attempt of the run at `uri`."""
        return Job(uri, self.make_spec(workers=Workers(2, min=1, max=4)), attempt, workers)

    def test_render_is_pure_and_plain(self, engine: Engine, uri: str) -> None:
        """The same job gives the same manifest, and it is JSON."""
        job = self.job(uri)
        assert json.loads(json.dumps(engine.render(job))) == engine.render(job)

    async def test_workers_start(self, engine: Engine, uri: str) -> None:
        """Submit starts as many workers as the job says."""
        job = self.job(uri)
        try:
            await engine.submit(job)
            status = await until(engine, job, running(2))
            assert len({worker.name for worker in status.workers}) == 2
        finally:
            await engine.delete(job, 0.0)
            await engine.close(job)

    async def test_submit_twice_is_submit_once(self, engine: Engine, uri: str) -> None:
        """A successor that submits again adopts what runs, also several at once."""
        job = self.job(uri)
        try:
            await asyncio.gather(*(engine.submit(job) for _ in range(4)))
            first = await until(engine, job, running(2))
            await engine.submit(job)
            assert await until(engine, job, running(2)) == first
        finally:
            await engine.delete(job, 0.0)
            await engine.close(job)

    async def test_delete_leaves_nothing(self, engine: Engine, uri: str) -> None:
        """After delete no worker runs, and deleting again is no error."""
        job = self.job(uri)
        await engine.submit(job)
        await until(engine, job, running(2))
        await engine.delete(job, 0.0)
        status = await until(engine, job, lambda status: True)
        assert not status.phases() & {WorkerPhase.RUNNING, WorkerPhase.PENDING} or not status.workers
        await engine.delete(job, 0.0)
        await engine.close(job)

    async def test_what_was_deleted_stays_deleted(self, engine: Engine, uri: str) -> None:
        """A controller that slept through the deletion cannot bring the attempt back to life."""
        job = self.job(uri)
        await engine.submit(job)
        await engine.delete(job, 0.0)
        await self._refused(engine, job)
        await engine.close(job)

    async def test_deleted_before_it_was_submitted(self, engine: Engine, uri: str) -> None:
        """The same where the submission had not even arrived."""
        job = self.job(uri)
        await engine.delete(job, 0.0)
        await self._refused(engine, job)
        await engine.close(job)

    async def _refused(self, engine: Engine, job: Job) -> None:
        try:
            await engine.submit(job)
        except EngineError:
            return
        raise AssertionError(f"{job.name} was deleted, and yet could be submitted again")

    async def test_attempts_are_apart(self, engine: Engine, uri: str) -> None:
        """Deleting one attempt does not touch the next one."""
        first, second = self.job(uri, 1), self.job(uri, 2)
        try:
            await engine.submit(first)
            await engine.delete(first, 0.0)
            await engine.submit(second)
            await until(engine, second, running(2))
            await engine.delete(first, 0.0)
            await until(engine, second, running(2))
        finally:
            await engine.delete(second, 0.0)
            await engine.close(second)

    async def test_capacity_is_a_number_or_a_reason(self, engine: Engine, uri: str) -> None:
        """Where the engine says its capacity: before, while and after a job runs, and to several at once."""
        if not isinstance(engine, MeasuresCapacity):
            return
        job = self.job(uri)
        before = await engine.capacity(job)
        try:
            await engine.submit(job)
            await until(engine, job, running(2))
            found = await asyncio.gather(*(engine.capacity(job) for _ in range(10)))
        finally:
            await engine.delete(job, 0.0)
            await engine.close(job)
        for one in (before, *found, await engine.capacity(job)):
            assert one.free is None or one.free >= 0
            assert before.at <= one.at
            assert all(claim.workers >= 1 and claim.seconds >= 0 and claim.name for claim in one.claims)
            assert all(count >= 0 for count in one.pools.values())

    async def test_scale_in_place(self, engine: Engine, uri: str) -> None:
        """Where the engine says it can: workers are added and sent away while the others stay."""
        if not engine.capabilities.scale_in_place:
            return
        job = self.job(uri)
        try:
            await engine.submit(job)
            before = await until(engine, job, running(2))
            await engine.scale(job, 3)
            grown = await until(engine, job, running(3))
            assert {w.name for w in before.workers} < {w.name for w in grown.workers}
            await engine.scale(job, 1)
            shrunk = await until(engine, job, running(1))
            assert [w.name for w in shrunk.workers if w.phase is WorkerPhase.RUNNING] == [
                before.workers[0].name
            ]
        finally:
            await engine.delete(job, 0.0)
            await engine.close(job)

    async def test_standby_workers(self, engine: Engine, uri: str) -> None:
        """Where the engine says it can: they are apart from those that train, and asked for once."""
        if not engine.capabilities.standby:
            return
        spec = self.make_spec(workers=Workers(2, min=1, max=4, standby=1))
        job, standing_by = Job(uri, spec, 1, 2, standby=True), cast("StandingBy", engine)
        try:
            await engine.submit(job)
            await until(engine, job, running(2))
            assert await standing_by.stand_by(job) == (2,)
            assert await standing_by.stand_by(job) == ()
            status = await until(engine, job, standby_running(2))
            assert running(2)(status)
            await engine.scale(job, 3)
            await until(engine, job, running(3))
            assert await standing_by.stand_by(job) == (3,)
            await until(engine, job, standby_running(3))
        finally:
            await engine.delete(job, 0.0)
            await engine.close(job)

    async def test_scale_steps_at_any_pace(self, engine: Engine, uri: str) -> None:
        """And where steps follow each other at once: nobody is lost, and in the end there are those that are wanted."""
        if not engine.capabilities.scale_in_place:
            return
        job, seen = self.job(uri), set[WorkerPhase]()

        async def watch() -> None:
            async for status in engine.watch(job):
                seen.update(status.phases())

        try:
            await engine.submit(job)
            await until(engine, job, running(2))
            watching = asyncio.create_task(watch())
            for workers in (3, 1, 3, 2, 4, 1, 2):
                await engine.scale(job, workers)
            await until(engine, job, running(2))
            watching.cancel()
            await asyncio.wait([watching])
            assert not seen & {WorkerPhase.LOST, WorkerPhase.FAILED}
        finally:
            await engine.delete(job, 0.0)
            await engine.close(job)
