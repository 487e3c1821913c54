"""Which workers have places in a cluster's job, when it changes its size and when lost workers are replaced."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.adapters.records.job_files import JobFiles, JobRecord, Members
from airflow_elastic.adapters.records.job_objects import JobObjects
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.engines.kube.worker_places import Shown, fresh, of_all, regroup, size_of, sized
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.errors import EngineError
from airflow_elastic.spec.status import JobStatus, WorkerPhase, WorkerStatus
from tests.support.builders import spec

RUN = spec()


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Scale steps and losses."""
    kinds = st.one_of(
        st.tuples(st.just("scale"), st.integers(1, 8)), st.tuples(st.just("lose"), st.integers(0, 7))
    )
    return draw(st.lists(kinds, max_size=12))


@given(histories())
def test_a_job_has_the_workers_that_it_is_to_have_and_none_that_was_lost(
    history: Sequence[tuple[str, int]],
) -> None:
    files = JobFiles(Path(tempfile.mkdtemp()))
    weakref.finalize(files, shutil.rmtree, files.folder)
    files.create("job.json", JobRecord("job", "/run", 1, RUN, RUN.digest, "", "python"))
    files.begin(Members(1, (0, 1), 0.0))
    lost, attempt = set[int](), 1
    for what, number in history:
        newest = files.newest_members()
        assert newest is not None
        before = newest.nodes
        if what == "scale":
            size = regroup(files, "job", lambda now, n=number: sized(now, n))  # type: ignore[misc]
            members = files.newest_members()
            assert members is not None
            assert len(members.nodes) == number
            stayed = [node for node in members.nodes if node in before]
            assert stayed == [node for node in before if node in members.nodes], "they have their order"
            assert len(stayed) == min(number, len(before))
            assert size > max(members.nodes)
            assert all(index < size for index in lost), "or the cluster forgets that they have failed"
            lost |= {index for index in before if index not in members.nodes and index < size}
        else:
            gone, attempt = before[number % len(before)], attempt + 1
            lost.add(gone)
            files.rejoin(attempt, {gone}, fresh)
            members = files.newest_members()
            assert members is not None
            changed = [(old, new) for old, new in zip(before, members.nodes, strict=True) if old != new]
            assert [old for old, _ in changed] == [gone]
        assert len(set(members.nodes)) == len(members.nodes)
        assert not set(members.nodes) & lost, "nobody has the number of one that was lost"


@st.composite
def histories_with_standby(draw: st.DrawFn) -> list[tuple[str, int]]:
    """The same with standby workers: how many there should be, and losses of them."""
    kinds = ("scale", "lose", "stand_by", "lose_standby")
    return draw(st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 6)), max_size=16))


@given(histories_with_standby())
def test_standby_workers_come_first_and_numbers_are_used_once(history: Sequence[tuple[str, int]]) -> None:
    files = JobFiles(Path(tempfile.mkdtemp()))
    weakref.finalize(files, shutil.rmtree, files.folder, ignore_errors=True)
    files.create("job.json", JobRecord("job", "/run", 1, RUN, RUN.digest, "", "python"))
    files.begin(Members(1, (0, 1), 0.0))
    lost, lost_standby, attempt, size = set[int](), set[int](), 1, 2
    for kind, number in history:
        members = files.newest_members()
        assert members is not None
        before, ready = set(members.all), [one for one in files.standby().nodes if one not in lost_standby]
        match kind:
            case "scale":
                wanted = partial(sized, workers=number + 1, ready=ready, lost=lost_standby)
                size = max(size, regroup(files, "job", wanted))
            case "lose":
                attempt, gone = attempt + 1, members.nodes[number % len(members.nodes)]
                lost.add(gone)
                files.rejoin(attempt, {gone}, partial(fresh, without={*ready, *lost_standby}), ready)
            case "stand_by":
                files.ask_standby(number, lost_standby.__contains__)
            case _ if ready:
                lost_standby.add(ready[number % len(ready)])
        after = files.newest_members()
        assert after is not None
        came = set(after.all) - before
        assert len(came & set(ready)) == min(len(came), len(ready))
        assert len(set(after.nodes)) == len(after.nodes)
        assert not set(after.all) & (lost | lost_standby)
        standby = files.standby()
        assert not set(standby.nodes) & (set(after.all) | lost)
        assert {*after.all, *standby.nodes} <= set(range(size_of(after, standby)))


async def test_standby_workers_are_shown_apart_and_replace_lost_ones_where_no_pod_can_come(
    files: JobObjects,
) -> None:
    files.ask_standby(1, lambda index: False)
    shown = partial(Shown(lambda: files, stands_by=True), change=0, grows=False)
    status = job(node_0="running", node_1="lost", node_2="running", node_3="pending")
    waits = await shown(status)
    assert [worker.name for worker in waits.standby_workers] == ["node-3"]
    assert [worker.name for worker in waits.workers] == ["node-0", "node-1", "node-2"]
    assert waits.replaceable == (), "nobody has its place yet"
    ready = await shown(job(node_0="running", node_1="lost", node_2="running", node_3="running"))
    assert ready.replaceable == (1,)
    two = await shown(job(node_0="lost", node_1="lost", node_2="running", node_3="running"))
    assert two.replaceable == (), "there is one for two"
    standby_lost = await shown(job(node_0="running", node_1="running", node_2="running", node_3="lost"))
    assert not standby_lost.failed
    assert standby_lost.standby_workers[0].phase is WorkerPhase.LOST


def test_without_losses_numbers_are_those_below_the_size() -> None:
    members = Members(1, (0, 1, 2), 0.0)
    assert sized(members, 5) == ((0, 1, 2, 3, 4), ())
    assert sized(members, 2) == ((0, 1), ())
    assert sized(Members(2, (0, 2), 0.0, awaited=(1,)), 4) == ((0, 2, 1, 3), ())
    assert sized(Members(2, (0, 3, 2), 0.0, spent=(1,)), 2) == ((0, 2), ())


def test_what_older_releases_know_nothing_of_is_not_written_without_need(files: JobObjects) -> None:
    regroup(files, "job", lambda now: sized(now, 5))
    files.look_anew()
    files.rejoin(2)
    files.look_anew()
    newest = files.newest_members()
    assert newest is not None
    assert "spent" not in encode(newest)


@pytest.fixture
def files(tmp_path: Path) -> JobObjects:
    found = JobObjects(open_store(str(tmp_path / "run")), "job", tmp_path / "own")
    found.create("job.json", JobRecord("job", "/run", 1, RUN, RUN.digest, "", "python"))
    found.begin(Members(1, (0, 1, 2), 0.0))
    return found


def test_workers_meet_anew_once(files: JobObjects) -> None:
    files.rejoin(2, {1}, fresh)
    assert regroup(files, "job", lambda now: sized(now, 4)) == 5
    files.look_anew()
    assert files.newest_members() == Members(3, (0, 3, 2, 4), 0.0, attempt=2, spent=(1,))
    assert regroup(files, "job", lambda now: sized(now, 4)) == 5
    assert regroup(files, "job", lambda now: of_all(now, (0, 4))) == 5
    files.look_anew()
    assert files.newest_members() == Members(4, (0, 4), 0.0, awaited=(2, 3), attempt=2, spent=(1,))
    files.create("closed", {})
    files.look_anew()
    with pytest.raises(EngineError, match="not there to be scaled"):
        regroup(files, "job", lambda now: sized(now, 2))


def job(**phases: str) -> JobStatus:
    return JobStatus(
        tuple(WorkerStatus(name.replace("_", "-"), WorkerPhase(phase)) for name, phase in phases.items())
    )


async def test_a_lost_worker_is_one_until_another_one_has_its_place(files: JobObjects) -> None:
    asked = []

    def opened() -> JobObjects:
        asked.append(1)
        files.look_anew()
        return files

    shown = partial(Shown(opened, stands_by=False), change=0, grows=True)
    status = job(node_0="running", node_1="lost", node_2="running")
    assert (await shown(job(node_0="running"))) == job(node_0="running")
    assert asked == []
    first = await shown(status)
    assert [worker.replaceable for worker in first.workers] == [False, True, False]
    assert first.replaceable == (1,)
    files.rejoin(2, {1}, fresh)
    for _ in range(3):
        later = await shown(JobStatus((*status.workers, WorkerStatus("node-3", WorkerPhase.RUNNING))))
    assert [str(worker.phase) for worker in later.workers] == ["running", "left", "running", "running"]
    assert len(asked) == 2, "what is known is not asked for again"
    again = await shown(JobStatus((*status.workers, WorkerStatus("node-3", WorkerPhase.LOST))))
    assert again.replaceable == (3,)


async def test_a_preempted_worker_is_replaced_only_by_a_standby_worker(files: JobObjects) -> None:
    files.ask_standby(1, lambda index: False)
    shown = partial(Shown(lambda: files, stands_by=True), change=0, grows=True)
    others = job(node_0="running", node_2="running")
    taken = WorkerStatus("node-1", WorkerPhase.LOST, preempted=True)
    for phase, lost in ((WorkerPhase.RUNNING, (1,)), (WorkerPhase.PENDING, ()), (WorkerPhase.LOST, ())):
        status = JobStatus((*others.workers, taken, WorkerStatus("node-3", phase)))
        assert (await shown(status)).replaceable == lost, phase


async def test_what_is_no_worker_or_has_no_number_is_not_replaced(files: JobObjects) -> None:
    shown = partial(Shown(lambda: files, stands_by=False), change=0, grows=True)
    deleted = JobStatus((WorkerStatus("job", WorkerPhase.LOST),))
    assert (await shown(deleted)) == deleted
