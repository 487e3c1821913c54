"""Training that begins with the workers a cluster has room for, and grows as the others come."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_elastic.adapters.records.job_files import JobFiles, JobRecord, Members
from airflow_elastic.adapters.records.job_objects import JobObjects
from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.adapters.storage.store import Entry
from airflow_elastic.core.scaling.gang_size import regrouping
from airflow_elastic.core.state import Attempt, Phase
from airflow_elastic.engines.api import Capabilities
from airflow_elastic.runtime.agent.rendezvous import meet
from airflow_elastic.runtime.agent.worker import Worker
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.status import JobStatus, Waiting, WorkerPhase, WorkerStatus
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.builders import spec
from tests.support.driving import Listener, controlled
from tests.support.machine.patience import until_async

R, Q, C, P, S = "running", "queued", "capacity", "pulling", "starting"
_WAITING = {Q: Waiting.QUEUED, C: Waiting.CAPACITY, P: Waiting.PULLING, S: Waiting.STARTING}


def job(*states: str) -> JobStatus:
    return JobStatus(
        tuple(
            WorkerStatus(f"node-{i}", WorkerPhase.PENDING, waiting=_WAITING[state])
            if state in _WAITING
            else WorkerStatus(f"node-{i}", WorkerPhase(state))
            for i, state in enumerate(states)
        )
    )


def wanted(
    *states: str, members: tuple[int, ...] | None = None, least: int = 1, unit: int = 1, waited: float = 99
) -> tuple[int, ...] | None:
    count = len(states)
    attempt = Attempt(1, count, Phase.LIVE, planned_at=0.0, members=members)
    workers = Workers(count, min=least, node_unit=unit, gather_seconds=30)
    return regrouping(attempt, workers, job(*states), waited)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (wanted(R, R, R), None),
        (wanted(R, R, C), (0, 1)),
        (wanted(Q, R, C), (1,)),
        (wanted(R, R, C, waited=29.9), None),
        (wanted(R, C, C, least=2), None),
        (wanted(C, C, C), None),
        (wanted(R, P, C), None),
        (wanted(R, S, C), None),
        (wanted(R, R, R, C, unit=2, least=2), (0, 1)),
        (wanted(R, R, C, members=(0, 1)), None),
        (wanted(R, R, R, C, members=(0, 1), waited=0), (0, 1, 2)),
        (wanted(R, R, P, members=(0, 1)), None),
        (wanted(R, R, R, members=(0, 1), waited=0), (0, 1, 2)),
        (wanted(R, "failed", C), None),
        (wanted(R, "lost", C, members=(0, 1)), None),
        (wanted("succeeded", R, C, members=(0, 1)), None),
        (wanted(R, "left", R, C, waited=31), (0, 2)),
    ],
)
def test_who_trains(found: tuple[int, ...] | None, expected: tuple[int, ...] | None) -> None:
    assert found == expected


async def test_it_trains_with_those_that_run_and_grows_and_its_end_waits_for_nobody(tmp_path: Path) -> None:
    engine, heard = FakeEngine(), Listener()
    workers = Workers(3, min=1, gather_seconds=0.01)
    async with controlled(tmp_path / "run", engine, heard, workers=workers) as run:
        await until_async(lambda: run.state.attempt.job, "the workers")
        name = run.state.attempt.job or ""
        engine.hold(name, Waiting.CAPACITY, workers=2)
        await until_async(lambda: run.state.attempt.members == (0,), "the first worker to train")
        engine.hold(name, Waiting.CAPACITY, workers=1)
        await until_async(lambda: run.state.attempt.members == (0, 1), "the second one to join")
        for index in (0, 1):
            engine.end_worker(name, index, WorkerStatus(f"node-{index}", WorkerPhase.SUCCEEDED))
        await until_async(lambda: run.state.ended, "the end")
        assert (run.state.outcome, len(run.state.attempts), run.state.restarts_used) == ("succeeded", 1, 0)
    assert engine.jobs[name].met == [(0,), (0, 1)]


class OfFixedSize(FakeEngine):
    """As DLRover: its jobs do not grow, but their workers can meet anew."""

    capabilities = Capabilities(regroup=True, rejoin=True)


@pytest.mark.parametrize(("launcher", "members"), [("torchrun", (0,)), ("torchrun-plain", None)])
async def test_it_takes_workers_that_can_meet_anew_and_not_jobs_that_grow(
    tmp_path: Path, launcher: str, members: tuple[int, ...] | None
) -> None:
    engine, heard = OfFixedSize(), Listener()
    workers = Workers(3, min=1, gather_seconds=0.01)
    async with controlled(tmp_path / "run", engine, heard, workers=workers, launcher=launcher) as run:
        await until_async(lambda: run.state.attempt.job, "the workers")
        engine.hold(run.state.attempt.job or "", Waiting.CAPACITY, workers=2)
        await until_async(lambda: heard.told, "that they wait")
        looks = heard.looks
        await until_async(lambda: heard.looks > looks + 5, "some looks")
        assert run.state.attempt.members == members


async def test_when_all_have_come_they_are_all_its_members(tmp_path: Path) -> None:
    engine, heard = FakeEngine(), Listener()
    workers = Workers(2, min=1, gather_seconds=0.01)
    async with controlled(tmp_path / "run", engine, heard, workers=workers) as run:
        await until_async(lambda: run.state.attempt.job, "the workers")
        name = run.state.attempt.job or ""
        engine.hold(name, Waiting.QUEUED, workers=1)
        await until_async(lambda: run.state.attempt.members == (0,), "the first worker to train")
        engine.release(name)
        await until_async(lambda: engine.jobs[name].met == [(0,), (0, 1)], "the second one to join")
        await until_async(lambda: run.state.attempt.members is None, "the word of it")


def test_a_worker_that_comes_late_stands_by_until_it_is_named(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "run")
    run: RunSpec = spec(workers=Workers(2, min=1))
    record = JobRecord("j", store.uri, 1, run, run.digest, "", "python")
    met: dict[int, tuple[int, ...]] = {}

    def documents(index: int) -> JobObjects:
        return JobObjects(store, "j", tmp_path / f"own-{index}")

    def come(index: int) -> None:
        members, _, _ = meet(Worker(documents(index), record, index, store))
        met[index] = members.nodes

    mine = documents(9)
    mine.create("members/0001.json", Members(1, (0, 1), 0.0))
    mine.create("members/0002.json", Members(2, (0,), 0.0, awaited=(1,)))
    assert (mine.joined(0), mine.joined(1)) == (1, 1), "who is awaited has its one life since the beginning"
    late = threading.Thread(target=come, args=(1,))
    late.start()
    come(0)
    assert met == {0: (0,)}
    mine.create("members/0003.json", Members(3, (0, 1), 0.0))
    come(0)
    late.join(30)
    assert met == {0: (0, 1), 1: (0, 1)}


class Flaky(FolderStore):
    """Out of reach now and then."""

    away = False

    def list(self, prefix: str = "") -> list[Entry]:
        if self.away:
            raise StoreError("no answer")
        return super().list(prefix)


def test_a_worker_whose_storage_is_out_of_reach_goes_on_by_what_it_saw_last(tmp_path: Path) -> None:
    store = Flaky(tmp_path / "run")
    mine = JobObjects(store, "j", tmp_path / "own")
    store.away = True
    with pytest.raises(StoreError):  # it has seen nothing yet
        mine.newest_members()
    store.away = False
    mine.create("members/0001.json", Members(1, (0, 1), 0.0))
    mine.look_anew()
    assert mine.newest_members() == Members(1, (0, 1), 0.0)
    store.away = True
    mine.look_anew()
    assert (mine.newest_members(), mine.superseded(1), mine.closed) == (Members(1, (0, 1), 0.0), False, False)
    store.away = False
    mine.create("members/0002.json", Members(2, (0,), 0.0))
    mine.look_anew()
    assert mine.superseded(1)


class Rivalled(JobFiles):
    """Somebody else is a moment faster, once."""

    rival: Members | None = None

    def create(self, name: str, document: object) -> bool:
        if self.rival is not None and name.startswith("members/"):
            rival, self.rival = self.rival, None
            super().create(f"members/{rival.generation:04d}.json", rival)
        return super().create(name, document)


def test_an_attempt_begins_in_place_though_a_scale_step_came_between(tmp_path: Path) -> None:
    files, run = Rivalled(tmp_path), spec()
    files.rejoin(2)  # there is no such job: nothing happens
    files.create("job.json", JobRecord("j", "/run", 1, run, run.digest, "", "python"))
    files.create("members/0001.json", Members(1, (0, 1), 0.0))
    files.rival = Members(2, (0, 1, 2), 0.0)
    files.rejoin(2)
    assert files.newest_members() == Members(3, (0, 1, 2), 0.0, attempt=2)
    files.rejoin(2)
    files.rejoin(1)
    assert files.newest_members() == Members(3, (0, 1, 2), 0.0, attempt=2)
    assert files.rejoin(3, {1, 2}) == (3, 4)
    assert files.rejoin(3, {1, 2}) == (3, 4), "a controller that comes later is told, too"
    replaced = Members(4, (0, 3, 4), 0.0, attempt=3, spent=(1, 2))
    assert files.newest_members() == replaced
    files.create("closed", {})
    files.rejoin(4)
    assert files.newest_members() == replaced
