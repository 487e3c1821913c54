"""Any sequence of scale steps, at any pace: nobody is lost, nobody is killed, and all end with whom was wanted."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_elastic.adapters.records.job_files import JobRecord, Members
from airflow_elastic.adapters.records.job_objects import JobObjects
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube import engine as engine_module
from airflow_elastic.engines.kube.kinds import pytorchjob, tensorstack
from airflow_elastic.engines.kube.scale_steps import Steps
from airflow_elastic.spec.run import Health, RunSpec, Workers
from airflow_elastic.spec.status import JobStatus, WorkerPhase
from tests.support.kubernetes.operators import OPERATORS
from tests.support.machine import virtual_time
from tests.support.runs.job_world import GRACE_SECONDS, TICK_SECONDS, JobWorld

BEGIN = 3

#: Workers that are wanted, and how many ticks after the step before.
Wanted = list[tuple[int, int]]


class Scaled:
    """A job of an engine in a world of its own, from its submission on."""

    def __init__(self, kind: str, folder: str, seed: int) -> None:
        operator = OPERATORS[kind]
        spec = RunSpec(
            ("t.py",),
            engine=operator.engine.kind.name,
            workers=Workers(BEGIN, min=operator.fewest, max=6),
            health=Health(grace_seconds=GRACE_SECONDS),
            engine_options={"image": "t:1", **operator.options},
        )
        self.job = Job(f"{folder}/run", spec, 1, BEGIN, standby=True)
        self.operator = operator(self.job.name)
        self.engine = self.operator.engine()
        self.world = JobWorld(self.operator, self._files, random.Random(seed))
        self.statuses: list[JobStatus] = []

    def _files(self) -> JobObjects:
        return self.engine._files(self.job)

    async def play(self, steps: Wanted) -> None:
        """Each step, so many ticks after the one before; then long enough for all to be done."""
        job, files = self.job, self._files()
        self.engine._steps = Steps(asyncio.get_running_loop().time)
        files.create(
            "job.json", JobRecord(job.name, job.run_uri, 1, job.spec, job.spec.digest, "", "python", True)
        )
        files.begin(Members(1, tuple(range(BEGIN)), 0.0))
        self.operator.begin(self.world, BEGIN)
        tasks = [asyncio.create_task(self.world.live()), asyncio.create_task(self._watch())]
        for workers, ticks in steps:
            await asyncio.sleep(ticks * TICK_SECONDS)
            await self.engine.scale(job, workers)
        await asyncio.sleep(10.0)
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _watch(self) -> None:
        async for status in self.engine.watch(self.job):
            self.statuses.append(status)


def check(kind: str, steps: Wanted, seed: int) -> None:
    steps = [(max(workers, OPERATORS[kind].fewest), ticks) for workers, ticks in steps]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        scaled = Scaled(kind, folder, seed)
        for module in (engine_module, pytorchjob, tensorstack):
            patch.setattr(module, "hub", scaled.world.hub)
        virtual_time.run(scaled.play(steps))
    workers = [worker for status in scaled.statuses for worker in status.workers]
    lost = [worker for worker in workers if worker.phase in (WorkerPhase.LOST, WorkerPhase.FAILED)]
    assert not lost, lost[0]
    there = [worker for worker in scaled.statuses[-1].workers if worker.phase is not WorkerPhase.LEFT]
    assert [(w.index, w.phase) for w in there] == [(i, WorkerPhase.RUNNING) for i in range(steps[-1][0])]
    assert not scaled.world.killed


on_every_kind = pytest.mark.parametrize("kind", OPERATORS)


@on_every_kind
@pytest.mark.parametrize(
    ("steps", "seed"),
    [
        pytest.param([(1, 40), (3, 1)], 6, id="while those that left save"),
        pytest.param([(4, 3), (3, 2), (1, 0), (3, 8), (3, 8), (4, 1)], 27, id="before a pod was made"),
        pytest.param([(1, 0), (5, 3), (4, 20)], 23, id="before the controller has heard that they are gone"),
        pytest.param([(2, 0), (5, 20)], 22, id="away before those that stay run"),
        pytest.param([(1, 20), (3, 3)], 18, id="away before the first one runs, and back"),
        pytest.param(
            [(2, 3), (6, 20), (1, 8), (2, 3), (3, 8)], 120, id="others than those that come still leave"
        ),
        pytest.param([(1, 15), (2, 3)], 4578, id="while one that left is made anew"),
    ],
)
def test_steps_that_follow_each_other_soon(kind: str, steps: Wanted, seed: int) -> None:
    check(kind, steps, seed)


_steps = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 40)), min_size=1, max_size=6)


@on_every_kind
@given(_steps, st.integers(0, 2**32))
@settings(max_examples=8, deadline=None)
def test_steps_at_any_pace_lose_nobody(kind: str, steps: Wanted, seed: int) -> None:
    check(kind, steps, seed)


@pytest.mark.slow
@on_every_kind
@given(_steps, st.integers(0, 2**32))
@settings(max_examples=400, deadline=None)
def test_steps_at_any_pace_lose_nobody_ever(kind: str, steps: Wanted, seed: int) -> None:
    check(kind, steps, seed)
