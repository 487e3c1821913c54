"""What Volcano tells in Events alone: which limit of a queue a gang waits for, and, up to 1.12, that it took pods back.

A PodGroup that stays `Pending` was not let in by its queue, or there is too little room in the cluster for its least
resources: an Event of it says which. A pod that Volcano takes back for others has an Event `Evict`, written before the
pod is deleted; only since 1.13 it has the condition `DisruptionTarget`, too. Its PodGroup has an Event `Evict`, which
names no pod: it is asked where nobody has seen the pod of a lost worker, as after a restart of the controller.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube import KubeError, Missing
from airflow_elastic.adapters.kube.resources import EVENTS
from airflow_elastic.engines.kube.queues.volcano import PODGROUPS
from airflow_elastic.engines.kube.watch.events import when
from airflow_elastic.spec.status import JobStatus, Waiting, WorkerPhase, WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_elastic.adapters.kube import Client

#: How soon a PodGroup that waits is looked at again, first and last.
_SOON_SECONDS, _LATE_SECONDS = 2.0, 30.0

#: What the plug-ins capacity, proportion and resourcequota say of a PodGroup that they do not let in.
_LIMIT = "resource quota insufficient"

#: And overcommit, where the cluster is full.
_FULL = "resource in cluster is overused"


class EventReasons:
    """What is told of one job, asked for when it matters.

    Args:
        client: of its cluster; without the right to read events nothing is told.
        namespace: of the job.
        name: of the job, and so of its PodGroup.

    Attributes:
        waited_for: whether workers waited when it was last asked: then it has to be asked again.
    """

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client, self._namespace, self._name = client, namespace, name
        self.waited_for = False
        self._wait: tuple[Waiting, str] | None = None
        self._look_at, self._pause = 0.0, _SOON_SECONDS

    async def __call__(self, status: JobStatus, pods: Mapping[int, str]) -> JobStatus:
        """The same with what Volcano has told of those that wait, and of those that are lost.

        Args:
            status: as owner and pods show it.
            pods: by the numbers of workers, the uids of their pods that have run.
        """
        workers = status.workers
        self.waited_for = any(_unplaced(worker) for worker in workers)
        if self.waited_for:
            await self._look()
            workers = tuple(held(worker, self._wait) if _unplaced(worker) else worker for worker in workers)
        else:
            self._wait, self._look_at, self._pause = None, 0.0, _SOON_SECONDS
        lost = [worker for worker in workers if _may_be_evicted(worker)]
        if any(worker.index in pods for worker in lost):
            evicted = await self._evicted()
            workers = tuple(
                taken(worker, evicted.get(pods.get(worker.index, ""))) if worker in lost else worker
                for worker in workers
            )
        unseen = [one for one in lost if one.phase is WorkerPhase.LOST and one.index not in pods]
        if unseen:
            why = await self._why_evicted()
            workers = tuple(taken(worker, why) if worker in unseen else worker for worker in workers)
        return replace(status, workers=workers)

    async def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            return
        self._look_at, self._pause = now + self._pause, min(2 * self._pause, _LATE_SECONDS)
        try:
            group = await self._client.get(PODGROUPS, self._namespace, self._name)
            self._wait = why_pending(
                group, await self._events("PodGroup", f"involvedObject.name={self._name}")
            )
        except Missing:
            self._wait = None
        except KubeError:
            pass  # it is asked again

    async def _evicted(self) -> dict[str, str]:
        """By uid, the pods that Volcano has taken back, and why."""
        try:
            events = await self._events("Pod", "reason=Evict")
        except KubeError:
            return {}
        return {str(event["involvedObject"].get("uid")): str(event.get("message")) for event in events}

    async def _why_evicted(self) -> str | None:
        """Why Volcano has taken pods of this attempt back, as its PodGroup tells; None where it has not."""
        try:
            events = await self._events("PodGroup", f"involvedObject.name={self._name},reason=Evict")
        except KubeError:
            return None
        return str(max(events, key=when).get("message")) if events else None

    async def _events(self, kind: str, more: str) -> list[dict[str, Any]]:
        fields = f"involvedObject.kind={kind},{more}"
        return (await self._client.list(EVENTS, self._namespace, fields=fields))[0]


def why_pending(group: Mapping[str, Any], events: list[dict[str, Any]]) -> tuple[Waiting, str] | None:
    """What a PodGroup waits for, with these events of it; None where it was let in, or nothing is told.

    Its events tell in turns that its pods cannot be placed, which they cannot before it is let in.
    """
    if (group.get("status") or {}).get("phase", "Pending") != "Pending":
        return None
    for event in sorted(events, key=when, reverse=True):
        said = str(event.get("message") or "")
        if _LIMIT in said:
            return Waiting.QUEUED, said
        if _FULL in said:
            return Waiting.CAPACITY, said
    return None


def held(worker: WorkerStatus, wait: tuple[Waiting, str] | None) -> WorkerStatus:
    """A worker of a gang that waits for this."""
    return worker if wait is None else replace(worker, waiting=wait[0], reason=wait[1])


def taken(worker: WorkerStatus, why: str | None) -> WorkerStatus:
    """A worker whose pod Volcano has taken back, with this message; None: it has not."""
    if why is None:
        return worker
    return replace(worker, phase=WorkerPhase.LOST, reason=f"preempted by Volcano: {why}", preempted=True)


def _unplaced(worker: WorkerStatus) -> bool:
    return worker.phase is WorkerPhase.PENDING and worker.node is None


def _may_be_evicted(worker: WorkerStatus) -> bool:
    return worker.phase in (WorkerPhase.LOST, WorkerPhase.FAILED) and not worker.preempted
