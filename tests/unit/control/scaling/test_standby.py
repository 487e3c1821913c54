"""A controller asks for standby workers, on an engine in memory."""

from __future__ import annotations

from pathlib import Path

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.control.scaling.standby import StandbyWorkers
from airflow_elastic.core.machine import create, evolve
from airflow_elastic.engines.api import Job
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.errors import EngineError
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.status import JobStatus, WorkerPhase, WorkerStatus
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.builders import spec
from tests.support.driving import driving

RUN = spec(
    engine="airflow_elastic.testing.fake_engine:FakeEngine", workers=Workers(2, min=1, max=4, standby=1)
)


async def test_one_that_ends_is_followed_by_another_and_costs_no_restart(tmp_path: Path) -> None:
    async with driving(tmp_path / "run", RUN) as driven:

        def asked() -> list[tuple[tuple[int, ...], str | None]]:
            events = Journal(driven.run.store).read()
            return [(one.workers, one.reason) for one in events if isinstance(one, ev.StandbyAsked)]

        await driven.until(asked, "a standby worker")
        name = driven.state.attempt.job
        assert name is not None
        FakeEngine().end_standby(name, WorkerStatus("node-2", WorkerPhase.LOST, reason="its pod was deleted"))
        await driven.until(lambda: len(asked()) > 1, "another one")
        assert asked() == [((2,), None), ((3,), "node-2 was lost: its pod was deleted")]
        FakeEngine().finish(name)
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("succeeded", 1, 0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_pauses_grow_with_losses_and_errors_end_nothing() -> None:
    class Engine(FakeEngine):
        calls = 0

        async def stand_by(self, job: Job) -> tuple[int, ...]:
            self.calls += 1
            if self.calls == 1:
                raise EngineError("the cluster is away")
            return (self.calls,)

    engine, clock = Engine(), Clock()
    standby = StandbyWorkers(engine, lambda: 0.0, clock)
    state = create(ev.RunCreated(0.0, RUN, scales_in_place=True))
    state = evolve(state, ev.AttemptSubmitted(1.0, 1, "job"))
    workers = tuple(WorkerStatus(f"node-{i}", WorkerPhase.RUNNING) for i in (0, 1))

    async def look(lost: int) -> bool:
        ended = WorkerStatus(f"node-{lost}", WorkerPhase.LOST)
        seen = JobStatus(workers, standby_workers=(ended,))
        return bool(await standby.look(state, seen, lambda attempt: Job("/run", RUN, attempt, 2)))

    assert not await look(2), "the error is logged, and it is tried again"
    waited = []
    for lost in (2, 3, 4, 5):
        began = clock.now
        while not await look(lost):
            clock.now += 1.0
        waited.append(clock.now - began)
    assert waited == [10.0, 10.0, 20.0, 40.0]
    ready = JobStatus(workers, standby_workers=(WorkerStatus("node-6", WorkerPhase.RUNNING),))
    await standby.look(state, ready, lambda attempt: Job("/run", RUN, attempt, 2))
    clock.now += 100.0
    trains = JobStatus((*workers, WorkerStatus("node-6", WorkerPhase.RUNNING)))
    assert await standby.look(state, trains, lambda attempt: Job("/run", RUN, attempt, 2))
    clock.now += 2.0
    assert await look(7), "a standby worker trains, so former losses delay nothing"
