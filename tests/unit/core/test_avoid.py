"""Machines on which a run has failed too often, and what is left where it has met trouble everywhere."""

from __future__ import annotations

import pytest

from airflow_elastic.core.health.classify import classify
from airflow_elastic.core.machine import evolve, replay
from airflow_elastic.core.state import FailureKind, RunState
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.run import RestartPolicy
from airflow_elastic.spec.status import JobStatus, Progress, RankError, WorkerPhase, WorkerStatus
from tests.support.builders import spec


def after(*lost: str, beside: str | None = None) -> RunState:
    """A run that has lost a worker on each of these machines in turn; another worker was on `beside`."""
    state = replay([ev.RunCreated(0.0, spec(restart=RestartPolicy(backoff_limit=99)), True, None)])
    assert state is not None
    for number, machine in enumerate(lost, 1):
        workers = [WorkerStatus("node-0", WorkerPhase.LOST, node=machine)]
        if beside is not None:
            workers.append(WorkerStatus("node-1", WorkerPhase.RUNNING, node=beside))
        for event in (
            ev.AttemptSubmitted(1.0, number, f"j-{number}"),
            ev.WorkersEnded(2.0, number, JobStatus(tuple(workers)), None),
            ev.AttemptGone(3.0, number, None),
            ev.BackoffElapsed(99.0, number + 1),
        ):
            state = evolve(state, event)
    assert len(state.attempts) == len(lost) + 1
    return state


@pytest.mark.parametrize(
    ("lost", "avoided"),
    [
        ((), ()),
        (("a",), ()),
        (("a", "a"), ("a",)),
        (("a", "b"), ()),
        (("a", "b", "a"), ("a",)),
        (("a", "a", "b"), ("a",)),
        (("a", "a", "b", "b"), ("b",)),
        (("a", "a", "b", "b", "c", "c"), ("c",)),
        (("a", "a", "b", "c"), ()),
    ],
)
def test_one_machine_at_a_time_is_avoided(lost: tuple[str, ...], avoided: tuple[str, ...]) -> None:
    assert after(*lost).avoid == avoided


def test_whether_there_is_anywhere_else_is_known_from_where_workers_have_been() -> None:
    assert not after("a", "a").has_elsewhere, "it may be the only machine there is"
    assert after("b", "a", "a").has_elsewhere
    assert after("a", "a", beside="b").has_elsewhere
    assert after().has_elsewhere is False


def test_the_machine_of_a_lost_worker_is_suspected_at_once() -> None:
    """Its cluster takes half a minute to see that a machine has died, and would start the next attempt there."""
    assert after().suspect is None
    assert after("a", "b").suspect == "b"


def lost_peers(*phases: WorkerPhase) -> str | None:
    error = RankError(rank=0, exit_code=1, at=1.0, error="RuntimeError: Connection closed by peer")
    workers = [
        WorkerStatus(
            f"node-{i}", phase, node=f"machine-{i}", errors=(error,) if phase is WorkerPhase.FAILED else ()
        )
        for i, phase in enumerate(phases)
    ]
    failure = classify(JobStatus(tuple(workers)))
    assert failure is not None
    assert failure.kind is FailureKind.WORKER_LOST
    return failure.node


def test_a_worker_that_loses_its_peers_is_not_to_blame() -> None:
    failed, running = WorkerPhase.FAILED, WorkerPhase.RUNNING
    assert lost_peers(failed, running) == "machine-1"
    assert lost_peers(failed, running, failed) == "machine-1"
    assert lost_peers(failed, running, running) is None, "it may be either of them"
    assert lost_peers(failed, failed) is None


@pytest.mark.parametrize(
    ("standby", "phase", "in_place"),
    [
        (None, WorkerPhase.RUNNING, False),
        ("c", WorkerPhase.RUNNING, True),
        ("c", WorkerPhase.PENDING, False),
        ("a", WorkerPhase.RUNNING, False),
    ],
)
def test_a_job_goes_on_where_a_standby_worker_is_on_another_machine(
    standby: str | None, phase: WorkerPhase, in_place: bool
) -> None:
    """Without one, the replacement may come to the very machine that is avoided."""
    state = after("a", beside="b")
    for event in (
        ev.AttemptSubmitted(100.0, 2, "j-2"),
        ev.WorkersEnded(
            101.0,
            2,
            JobStatus(
                (
                    WorkerStatus("node-0", WorkerPhase.LOST, node="a", replaceable=True),
                    WorkerStatus("node-1", WorkerPhase.RUNNING, node="b"),
                ),
                standby_workers=(WorkerStatus("node-2", phase, node=standby),) if standby else (),
            ),
            Progress(2, 101.0, step=50),
        ),
    ):
        state = evolve(state, event)
    assert state.avoid == ("a",)
    assert (state.attempt.home == 2) is in_place
