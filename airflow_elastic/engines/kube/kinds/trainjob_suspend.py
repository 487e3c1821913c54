"""Ends a TrainJob: it is suspended before it is deleted, so that no new pods are made meanwhile.

A job is at rest when it is suspended and all controllers have seen that. Trainer, JobSet and the Job's controller hear
of a deletion one after the other, and each restores missing objects for a while. At rest these have no pods. In a queue
of Kueue a suspension lasts only while the job's Workload is not active, so the Workload is deactivated first. Seen with
Trainer 2.3 on JobSet 0.12, and Kueue 0.16.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_elastic.adapters.kube import Conflict, KubeError, Missing
from airflow_elastic.engines.kube.queues import kueue

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from airflow_elastic.adapters.kube.hub import Hub, Query

log = logging.getLogger(__name__)

#: The longest wait for all controllers, in seconds; they need 0.1 s.
_REST_SECONDS = 10.0


class JobAddress(NamedTuple):
    """The place of a job.

    Attributes:
        shared: the connection.
        name: of the TrainJob.
        child_name: of its Job.
        uid: of the TrainJob.
        owner: shows TrainJobs; their slim status says whether they are `quiet`.
        child: shows their Jobs, which say the same.
    """

    shared: Hub
    name: str
    child_name: str
    uid: str
    owner: Query
    child: Query


async def suspend(place: JobAddress) -> None:
    """Bring a TrainJob to rest, if possible."""
    await _at_most(place, _rest(place))


async def end_queued(place: JobAddress, workloads: Query) -> None:
    """Bring a queued TrainJob to rest, and delete it before it is allowed to run again, if possible."""
    await _at_most(place, _end_queued(place, workloads))


async def _at_most(place: JobAddress, what: Coroutine[Any, Any, None]) -> None:
    """If a controller does not answer, it makes no pods either. And pods that are made again end by themselves."""
    try:
        async with asyncio.timeout(_REST_SECONDS):
            await what
    except Missing:
        return
    except TimeoutError:
        log.warning("%s is still not at rest after %g s", place.name, _REST_SECONDS)
    except KubeError as error:
        log.warning("%s cannot be brought to rest before it is deleted: %s", place.name, error)


async def _rest(place: JobAddress, *workloads: Query) -> None:
    """Suspend it, and wait until all controllers have seen it; with Workloads only as long as Kueue holds it."""
    body = {"metadata": {"uid": place.uid}, "spec": {"suspend": True}}
    await place.shared.client.patch(place.owner.resource, place.owner.namespace, place.name, body)
    async for owners, children, *queued in place.shared.follow(
        place.name, place.owner, place.child, *workloads
    ):
        if any(place.uid in one["owners"] and kueue.may_run(one) for found in queued for one in found):
            return  # Kueue had not seen it before, and has undone the suspension, or will soon
        if all(one["status"]["quiet"] for one in (*owners, *children)) and (
            children or await _childless(place)
        ):
            return


async def _childless(place: JobAddress) -> bool:
    """Whether there is no Job: it may be newer than the watch's newest message."""
    try:
        await place.shared.client.get(place.child.resource, place.child.namespace, place.child_name)
    except Missing:
        return True
    return False


async def _end_queued(place: JobAddress, workloads: Query) -> None:
    """Kueue may start the TrainJob at any time before it sees the change, so this deletes it only at rest."""
    client, namespace = place.shared.client, place.owner.namespace
    while True:
        await _deactivate(place, workloads)
        await _rest(place, workloads)
        found = await client.get(place.owner.resource, namespace, place.name)
        metadata = found["metadata"]
        if metadata["uid"] != place.uid:
            return None
        if place.owner.slim(found)["status"]["quiet"]:
            try:
                return await client.delete(
                    place.owner.resource,
                    namespace,
                    place.name,
                    uid=place.uid,
                    version=metadata["resourceVersion"],
                )
            except Conflict:
                log.debug("%s has changed before it was deleted", place.name)


async def _deactivate(place: JobAddress, workloads: Query) -> None:
    """Let Kueue hold the job for good. Without a Workload it holds the job anyway, until it has made one."""
    client, selector = place.shared.client, f"{kueue.JOB_UID_LABEL}={place.uid}"
    async for _ in place.shared.follow(place.name, workloads):
        found, _version = await client.list(workloads.resource, workloads.namespace, labels=selector)
        for one in found:
            if kueue.may_run(kueue.slim(one)):
                await _patch(place, workloads, one)
        if all(kueue.is_evicted(kueue.slim(one)) for one in found):
            return


async def _patch(place: JobAddress, workloads: Query, workload: dict[str, Any]) -> None:
    name, body = workload["metadata"]["name"], {"spec": {"active": False}}
    try:
        await place.shared.client.patch(workloads.resource, workloads.namespace, name, body)
    except Missing:
        log.debug("the Workload %s of %s has gone", name, place.name)
