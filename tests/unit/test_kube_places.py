"""Which workers have places in a cluster's job, when it changes its size and when lost workers are replaced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.adapters.jobfiles import JobRecord, Members
from airflow_elastic.adapters.jobobjects import JobObjects
from airflow_elastic.adapters.stores import open_store
from airflow_elastic.engines.kube.places import Shown, fresh, meet_anew, of_all, size_of, sized
from airflow_elastic.spec.errors import EngineError
from airflow_elastic.spec.status import JobStatus, WorkerPhase, WorkerStatus
from tests.support.builders import spec


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
    members, spent = Members(1, (0, 1), 0.0), set[int]()
    for what, number in history:
        before = members.nodes
        if what == "scale":
            nodes, awaited = sized(members, number, spent)
            assert (len(nodes), awaited) == (number, ())
            assert set(nodes) <= set(before) or set(before) <= set(nodes), "some came, or some went"
        else:
            gone = before[number % len(before)]
            spent.add(gone)
            others = fresh(members, spent)
            nodes = tuple(next(others) if node == gone else node for node in before)
            assert len(nodes) == len(before)
        assert len(set(nodes)) == len(nodes)
        assert not set(nodes) & spent
        assert size_of(nodes) > max(nodes)
        members = Members(members.generation + 1, nodes, 0.0)


def test_without_losses_numbers_are_those_below_the_size() -> None:
    members = Members(1, (0, 1, 2), 0.0)
    assert sized(members, 5, ()) == ((0, 1, 2, 3, 4), ())
    assert sized(members, 2, ()) == ((0, 1), ())
    assert sized(Members(2, (0, 2), 0.0, awaited=(1,)), 4, ()) == ((0, 1, 2, 3), ())


@pytest.fixture
def files(tmp_path: Path) -> JobObjects:
    found = JobObjects(open_store(str(tmp_path / "run")), "job", tmp_path / "own")
    run = spec()
    found.create("job.json", JobRecord("job", "/run", 1, run, run.digest, "", "python"))
    found.begin(Members(1, (0, 1, 2), 0.0))
    return found


def test_workers_meet_anew_once(files: JobObjects) -> None:
    assert meet_anew(files, "job", lambda now: sized(now, 4, {3})) == 5
    files.look_anew()
    assert files.newest_members() == Members(2, (0, 1, 2, 4), 0.0)
    assert meet_anew(files, "job", lambda now: sized(now, 4, {3})) == 5
    assert meet_anew(files, "job", lambda now: of_all(now, (0, 4))) == 5
    files.look_anew()
    assert files.newest_members() == Members(3, (0, 4), 0.0, awaited=(1, 2))
    files.create("closed", {})
    files.look_anew()
    with pytest.raises(EngineError, match="not there to be scaled"):
        meet_anew(files, "job", lambda now: sized(now, 2, ()))


def job(**phases: str) -> JobStatus:
    return JobStatus(
        tuple(WorkerStatus(name.replace("_", "-"), WorkerPhase(phase)) for name, phase in phases.items())
    )


async def test_a_lost_worker_is_one_until_another_one_has_its_place(files: JobObjects) -> None:
    asked = []

    def members() -> Members | None:
        asked.append(1)
        files.look_anew()
        return files.newest_members()

    shown = Shown(members)
    status = job(node_0="running", node_1="lost", node_2="running")
    assert (await shown(job(node_0="running"))) == job(node_0="running")
    assert asked == []
    first = await shown(status)
    assert [worker.replaceable for worker in first.workers] == [False, True, False]
    assert first.replaceable == (1,)
    files.rejoin(2, {1}, lambda now: fresh(now, {1}))
    for _ in range(3):
        later = await shown(JobStatus((*status.workers, WorkerStatus("node-3", WorkerPhase.RUNNING))))
    assert [str(worker.phase) for worker in later.workers] == ["running", "left", "running", "running"]
    assert len(asked) == 2, "what is known is not asked for again"


async def test_what_is_no_worker_or_was_taken_is_not_replaced(files: JobObjects) -> None:
    shown = Shown(files.newest_members)
    deleted = JobStatus((WorkerStatus("job", WorkerPhase.LOST),))
    assert (await shown(deleted)) == deleted
    taken = JobStatus((WorkerStatus("node-1", WorkerPhase.LOST, preempted=True),))
    assert (await shown(taken)) == taken
