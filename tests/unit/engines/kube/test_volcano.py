"""What Volcano tells in Events alone, as 1.12 and 1.15 have written them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_elastic.adapters.kube import KubeError, Missing
from airflow_elastic.engines.kube.queues.volcano_events import EventReasons, why_pending
from airflow_elastic.spec.status import JobStatus, Waiting, WorkerPhase, WorkerStatus

NAME = "train-0123456789-a1"
LIMIT = "queue resource quota insufficient: insufficient nvidia.com/gpu"
QUOTA = "resource quota insufficient, requested: map[cpu:4], used: map[cpu:2], limited: map[cpu:4]"
FULL = "resource in cluster is overused: overused nvidia.com/gpu"
GANG = "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable"
EVICTED = "Pod is evicted, because of preempt"

STARTING = WorkerStatus("node-0", WorkerPhase.PENDING, waiting=Waiting.STARTING)
NO_ROOM = WorkerStatus("node-1", WorkerPhase.PENDING, waiting=Waiting.CAPACITY, reason=GANG)
RUNS = WorkerStatus("node-1", WorkerPhase.RUNNING, node="node-a")
LOST = WorkerStatus("node-0", WorkerPhase.LOST, reason="it was told to end")


def event(
    message: str, second: int = 0, *, kind: str = "PodGroup", reason: str = "Unschedulable", **of: str
) -> dict[str, Any]:
    return {
        "involvedObject": {"kind": kind, "name": NAME, **of},
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2026-11-27T10:00:{second:02}Z",
        "metadata": {},
    }


def group(phase: str | None) -> dict[str, Any]:
    return {"metadata": {"name": NAME}, **({} if phase is None else {"status": {"phase": phase}})}


@pytest.mark.parametrize(
    ("phase", "messages", "wait"),
    [
        ("Pending", [LIMIT], (Waiting.QUEUED, LIMIT)),
        (None, [LIMIT], (Waiting.QUEUED, LIMIT)),  # the controller has not looked at it yet
        ("Pending", [LIMIT, GANG], (Waiting.QUEUED, LIMIT)),
        ("Pending", [QUOTA], (Waiting.QUEUED, QUOTA)),
        ("Pending", [LIMIT, FULL], (Waiting.CAPACITY, FULL)),
        ("Pending", [FULL, LIMIT], (Waiting.QUEUED, LIMIT)),
        ("Pending", [GANG], None),
        ("Pending", [], None),
        ("Inqueue", [LIMIT], None),  # it was let in since
        ("Running", [LIMIT], None),
    ],
)
def test_a_limit_of_the_queue_is_no_lack_of_room(
    phase: str | None, messages: list[str], wait: tuple[Waiting, str] | None
) -> None:
    assert why_pending(group(phase), [event(text, i) for i, text in enumerate(messages)]) == wait


class Cluster:
    """A PodGroup and events; counts what it is asked for."""

    def __init__(self, phase: str | None, *events: dict[str, Any], refuses: bool = False) -> None:
        self.phase, self.events, self.refuses, self.asked = phase, events, refuses, 0

    async def get(self, resource: Any, namespace: str, name: str) -> dict[str, Any]:
        self.asked += 1
        if self.phase is None:
            raise Missing("there is none", 404)
        return group(self.phase)

    async def list(self, resource: Any, namespace: str, *, fields: str) -> tuple[list[dict[str, Any]], str]:
        if self.refuses:
            raise KubeError("no rights", 403)
        wanted = dict(field.split("=") for field in fields.split(","))
        kind, reason = wanted["involvedObject.kind"], wanted.get("reason")
        found = [one for one in self.events if one["involvedObject"]["kind"] == kind]
        return [one for one in found if reason in (None, one.get("reason"))], "1"


def told(cluster: Cluster) -> EventReasons:
    client: Any = cluster
    return EventReasons(client, "ns", NAME)


async def test_workers_that_wait_for_the_queue_are_queued_with_its_words() -> None:
    """Whether they have pods that Volcano has looked at, or none, as an operator waits until the gang is let in."""
    cluster = Cluster("Pending", event(GANG, 2), event(LIMIT, 1))
    asking = told(cluster)
    status = await asking(JobStatus((STARTING, NO_ROOM)), {})
    assert {(one.waiting, one.reason) for one in status.workers} == {(Waiting.QUEUED, LIMIT)}
    again = await asking(JobStatus((STARTING, NO_ROOM)), {})
    assert (again, cluster.asked) == (status, 1), "it is not asked for with each snapshot"
    assert asking.waited_for
    assert await asking(JobStatus((RUNS,)), {}) == JobStatus((RUNS,))
    assert not asking.waited_for


@pytest.mark.parametrize("cluster", [Cluster(None), Cluster("Pending", event(LIMIT), refuses=True)])
async def test_what_is_not_told_changes_nothing(cluster: Cluster) -> None:
    status = JobStatus((STARTING, NO_ROOM))
    assert await told(cluster)(status, {}) == status


async def test_a_pod_that_was_evicted_was_preempted() -> None:
    """Up to 1.12 its condition DisruptionTarget does not say so."""
    of_it = event(EVICTED, kind="Pod", reason="Evict", uid="p0")
    ended = await told(Cluster("Running", of_it))(JobStatus((LOST, RUNS)), {0: "p0", 1: "p1"})
    first, second = ended.workers
    assert (first.phase, first.preempted) == (WorkerPhase.LOST, True)
    assert first.reason == f"preempted by Volcano: {EVICTED}"
    assert second == RUNS
    other = await told(Cluster("Running", of_it))(JobStatus((LOST, RUNS)), {0: "another pod", 1: "p1"})
    assert other.workers[0] == LOST
    without = await told(Cluster("Running", of_it, refuses=True))(JobStatus((LOST,)), {0: "p0"})
    assert without.workers[0] == LOST


async def test_a_worker_whose_program_ended_with_a_failure_as_it_was_evicted_was_preempted_too() -> None:
    failed = WorkerStatus("node-0", WorkerPhase.FAILED)
    of_it = event(EVICTED, kind="Pod", reason="Evict", uid="p0")
    (worker,) = (await told(Cluster("Running", of_it))(JobStatus((failed,)), {0: "p0"})).workers
    assert (worker.phase, worker.preempted) == (WorkerPhase.LOST, True)


async def test_a_worker_whose_pod_nobody_has_seen_was_preempted_where_its_group_says_so() -> None:
    """As after a restart of the controller: the PodGroup's Event names no pod, and each attempt has its own group."""
    of_group = event("preempt", reason="Evict")
    cluster = Cluster("Running", of_group, event(GANG, 1))
    first, second = (await told(cluster)(JobStatus((LOST, RUNS)), {1: "p1"})).workers
    assert (first.phase, first.preempted) == (WorkerPhase.LOST, True)
    assert first.reason == "preempted by Volcano: preempt"
    assert second == RUNS
    seen = await told(cluster)(JobStatus((LOST, RUNS)), {0: "p0", 1: "p1"})
    assert seen.workers[0] == LOST, "of a pod that was seen its own Event tells, and there is none"
    others = await told(Cluster("Running", event(GANG)))(JobStatus((LOST,)), {})
    assert others.workers[0] == LOST
    without = await told(Cluster("Running", of_group, refuses=True))(JobStatus((LOST,)), {})
    assert without.workers[0] == LOST
