"""What only events say about pods: volumes that cannot be mounted, networks that fail, images that are pulled.

They are read if a pod with a node says nothing itself.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube import KubeError
from airflow_elastic.adapters.kube.resources import EVENTS
from airflow_elastic.engines.kube.watch.disruption import words
from airflow_elastic.spec.status import JobStatus, Waiting, WorkerPhase, WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_elastic.adapters.kube import Client

#: The most pods of a job to ask about: the first one with an answer counts, and servers search all events for each.
_PODS = 3

#: Events from before a pod had its node.
_EARLIER = ("Scheduled", "FailedScheduling", "Preempted", "TriggeredScaleUp", "NotTriggerScaleUp")

#: Older nodes say this about an image that they try again: an event has the reason.
_BACK_OFF = re.compile(r"ImagePullBackOff: Back-off pulling image \S+$")

Told = tuple[Waiting, str]


def wants(worker: WorkerStatus) -> bool:
    """Whether events may know more about a worker than its pod says."""
    if worker.phase is not WorkerPhase.PENDING or worker.node is None:
        return False
    silent = worker.waiting is Waiting.STARTING and worker.reason is None
    return silent or _BACK_OFF.search(worker.reason or "") is not None


class PodEvents:
    """The events of a job's silent pods, read when it is time.

    Args:
        client: of its cluster; without the right to list events there are none.
        namespace: of the pods.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._told: dict[str, Told] = {}

    async def __call__(self, status: JobStatus, silent: Mapping[str, str], *, ask: bool) -> JobStatus:
        """The same with the words of events, for workers whose pods say no more.

        Args:
            status: as the pods show it.
            silent: the uids of such pods, by the names of their workers.
            ask: whether to look for newer events of the first of them.
        """
        if ask and silent:
            with contextlib.suppress(KubeError):  # then the last known events count
                self._told = await self._of_pods([*silent.values()][:_PODS])
        return with_event_messages(
            status, {name: self._told[uid] for name, uid in silent.items() if uid in self._told}
        )

    async def _of_pods(self, uids: Iterable[str]) -> dict[str, Told]:
        found: dict[str, Told] = {}
        for uid in uids:
            events, _ = await self._client.list(EVENTS, self._namespace, fields=f"involvedObject.uid={uid}")
            if (told := newest_of(events)) is not None:
                found[uid] = told
        return found


def newest_of(events: Iterable[Mapping[str, Any]]) -> Told | None:
    """The newest event that says why a pod waits on its node; None if the pod is past that."""
    later = [one for one in events if one.get("reason") not in _EARLIER]
    if not later:
        return None
    newest = max(later, key=lambda one: (when(one), one.get("type") == "Warning"))
    reason, message = newest.get("reason"), newest.get("message")
    if newest.get("type") == "Warning":
        pulling = "pull" in str(message).lower() or reason in ("ErrImageNeverPull", "InspectFailed")
        return (Waiting.PULLING if pulling else Waiting.STARTING), words(reason, message) or "a warning"
    return (Waiting.PULLING, words(message) or "Pulling") if reason == "Pulling" else None


def with_event_messages(status: JobStatus, told: Mapping[str, Told]) -> JobStatus:
    """The same with the words of events, by the names of workers, if their pods still say no more."""
    return replace(status, workers=tuple(_with_words(one, told.get(one.name)) for one in status.workers))


def _with_words(worker: WorkerStatus, told: Told | None) -> WorkerStatus:
    if told is None or not wants(worker):
        return worker
    if worker.reason is None:
        return replace(worker, waiting=told[0], reason=told[1])
    return replace(worker, reason=f"{worker.reason}: {told[1]}") if told[1].startswith("Failed") else worker


def when(event: Mapping[str, Any]) -> str:
    """Its time, as text that can be compared."""
    series = event.get("series") or {}
    at = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(at or event["metadata"].get("creationTimestamp"))
