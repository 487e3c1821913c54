"""Any sequence of scale steps, at any pace: nobody is lost, nobody is killed, and all end with whom was wanted."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_elastic.adapters.jobfiles import JobRecord, Members
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube import engine as engine_module
from airflow_elastic.engines.kube.job import JobEngine
from airflow_elastic.engines.kube.steps import Steps
from airflow_elastic.spec.run import Health, RunSpec, Workers
from airflow_elastic.spec.status import JobStatus, WorkerPhase
from tests.support.job_world import GRACE_SECONDS, JobWorld

BEGIN = 3
SPEC = RunSpec(
    ("t.py",),
    engine="job",
    workers=Workers(BEGIN, min=1, max=6),
    health=Health(grace_seconds=GRACE_SECONDS),
    engine_options={"image": "t:1"},
)


class Scaled:
    """A job of an engine in a world of its own, from its submission on."""

    def __init__(self, folder: str, seed: int) -> None:
        self.job = Job(f"{folder}/run", SPEC, 1, BEGIN, standby=True)
        self.world = JobWorld(self.job.name, random.Random(seed))
        self.engine = JobEngine()
        self.engine._steps = Steps(self.world.clock, self.world.sleep)
        self.statuses: list[JobStatus] = []

    async def play(self, steps: list[tuple[int, int]]) -> None:
        """Each step, so many ticks after the one before; then long enough for all to be done."""
        files = self.engine._files(self.job)
        files.create(
            "job.json", JobRecord(self.job.name, self.job.run_uri, 1, SPEC, SPEC.digest, "", "python", True)
        )
        files.begin(Members(1, tuple(range(BEGIN)), 0.0))
        self.world.job |= {
            "metadata": {"name": self.job.name, "uid": "job"},
            "spec": {"completions": BEGIN, "parallelism": BEGIN},
            "status": {"failed": set(), "done": set()},
        }
        watching = asyncio.create_task(self._watch())
        for workers, ticks in steps:
            for _ in range(ticks):
                await self.world.tick()
            await self.engine.scale(self.job, workers)
        await self.world.sleep(10.0)
        await asyncio.sleep(0.02)  # for threads
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    async def _watch(self) -> None:
        async for status in self.engine.watch(self.job):
            self.statuses.append(status)


def check(steps: list[tuple[int, int]], seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        scaled = Scaled(folder, seed)
        patch.setattr(engine_module, "hub", scaled.world.hub)
        asyncio.run(scaled.play(steps))
    workers = [worker for status in scaled.statuses for worker in status.workers]
    lost = [worker for worker in workers if worker.phase in (WorkerPhase.LOST, WorkerPhase.FAILED)]
    assert not lost, lost[0]
    there = [worker for worker in scaled.statuses[-1].workers if worker.phase is not WorkerPhase.LEFT]
    assert [(w.index, w.phase) for w in there] == [(i, WorkerPhase.RUNNING) for i in range(steps[-1][0])]
    assert not scaled.world.killed


@pytest.mark.parametrize(
    ("steps", "seed"),
    [
        pytest.param([(1, 40), (3, 1)], 6, id="while those that left save"),
        pytest.param([(4, 3), (3, 2), (1, 0), (3, 8), (3, 8), (4, 1)], 27, id="before a pod was made"),
        pytest.param([(1, 0), (5, 3), (4, 20)], 23, id="before the controller has heard that they are gone"),
    ],
)
def test_steps_that_follow_each_other_soon(steps: list[tuple[int, int]], seed: int) -> None:
    check(steps, seed)


_steps = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 40)), min_size=1, max_size=6)


@given(_steps, st.integers(0, 2**32))
@settings(max_examples=5, deadline=None)
def test_steps_at_any_pace_lose_nobody(steps: list[tuple[int, int]], seed: int) -> None:
    check(steps, seed)


@pytest.mark.slow
@given(_steps, st.integers(0, 2**32))
@settings(max_examples=400, deadline=None)
def test_steps_at_any_pace_lose_nobody_ever(steps: list[tuple[int, int]], seed: int) -> None:
    check(steps, seed)
