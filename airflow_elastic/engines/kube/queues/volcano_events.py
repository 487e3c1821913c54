"""Events of Volcano: the queue limit that a gang waits for, and, up to 1.12, the preemption of pods.

A PodGroup stays `Pending` if its queue does not admit it, or the cluster has too little room for its least resources.
An Event of it says which. A preempted pod has an Event `Evict`, written before the pod is deleted. Only since 1.13 it
also has the condition `DisruptionTarget`. Its PodGroup has an Event `Evict` without the pod's name. That is used if
nobody has seen the pod of a lost worker, as after a restart of the controller.
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

#: The shortest and longest interval between looks at a PodGroup that waits, in seconds.
_SOON_SECONDS, _LATE_SECONDS = 2.0, 30.0

#: Words of the plug-ins capacity, proportion and resourcequota about a PodGroup that they do not admit.
_LIMIT = "resource quota insufficient"

#: Words of the plug-in overcommit, if the cluster is full.
_FULL = "resource in cluster is overused"


class EventReasons:
    """The reports about one job, read when they matter.

    Args:
        client: of its cluster; without the right to read events there are no reports.
        namespace: of the job.
        name: of the job, and so of its PodGroup.

    Attributes:
        waited_for: whether workers waited at the last look: then another look is needed.
    """

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client, self._namespace, self._name = client, namespace, name
        self.waited_for = False
        self._wait: tuple[Waiting, str] | None = None
        self._look_at, self._pause = 0.0, _SOON_SECONDS

    async def __call__(self, status: JobStatus, pods: Mapping[int, str]) -> JobStatus:
        """The same with Volcano's words about the workers that wait, and about those that are lost.

        Args:
            status: by owner and pods.
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
            pass  # there will be another look

    async def _evicted(self) -> dict[str, str]:
        """The pods that Volcano has preempted, with the reasons, by uid."""
        try:
            events = await self._events("Pod", "reason=Evict")
        except KubeError:
            return {}
        return {str(event["involvedObject"].get("uid")): str(event.get("message")) for event in events}

    async def _why_evicted(self) -> str | None:
        """Why Volcano has preempted pods of this attempt, by its PodGroup; None if it has not."""
        try:
            events = await self._events("PodGroup", f"involvedObject.name={self._name},reason=Evict")
        except KubeError:
            return None
        return str(max(events, key=when).get("message")) if events else None

    async def _events(self, kind: str, more: str) -> list[dict[str, Any]]:
        fields = f"involvedObject.kind={kind},{more}"
        return (await self._client.list(EVENTS, self._namespace, fields=fields))[0]


def why_pending(group: Mapping[str, Any], events: list[dict[str, Any]]) -> tuple[Waiting, str] | None:
    """What a PodGroup waits for, by these events; None if it was admitted, or there is no report.

    Some of its events say that its pods cannot be placed, but that is always so before it is admitted.
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
    """A worker of a gang that waits."""
    return worker if wait is None else replace(worker, waiting=wait[0], reason=wait[1])


def taken(worker: WorkerStatus, why: str | None) -> WorkerStatus:
    """A worker whose pod Volcano has preempted, with this message; None: it has not."""
    if why is None:
        return worker
    return replace(worker, phase=WorkerPhase.LOST, reason=f"preempted by Volcano: {why}", preempted=True)


def _unplaced(worker: WorkerStatus) -> bool:
    return worker.phase is WorkerPhase.PENDING and worker.node is None


def _may_be_evicted(worker: WorkerStatus) -> bool:
    return worker.phase in (WorkerPhase.LOST, WorkerPhase.FAILED) and not worker.preempted
