"""Who waits in the queue of a run for its share, read from the cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from airflow_elastic.adapters.kube.errors import Forbidden
from airflow_elastic.engines.kube.capacity.pods import requested
from airflow_elastic.engines.kube.capacity.queues import kueue_claims, volcano
from airflow_elastic.engines.kube.capacity.queues.kueue_quota import Quotas
from airflow_elastic.engines.kube.capacity.queues.limits import (
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    VOLCANO_QUEUES,
    cohorts_of,
    volcano_queue,
)
from airflow_elastic.engines.kube.capacity.reader import EVERYWHERE, Reader
from airflow_elastic.engines.kube.queues.kueue import WORKLOADS
from airflow_elastic.engines.kube.queues.volcano import PODGROUPS
from airflow_elastic.spec.scaling.observation import Claim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_elastic.engines.kube.capacity.asked import Asked
    from airflow_elastic.engines.kube.capacity.claims import Worker


class Waiting(NamedTuple):
    """Who waits in the queue of a job.

    Attributes:
        claims: of others, on what the job has.
        lacking: in words, which rights to see them are missing.
        priority: of the job itself, if the queue has one for it.
    """

    claims: tuple[Claim, ...] = ()
    lacking: str = ""
    priority: int | None = None


async def queue_claims(reader: Reader, asked: Asked, job: str, own: Sequence[Worker], now: float) -> Waiting:
    """The claims of those who wait in the queue of a job.

    Args:
        reader: of the cluster.
        asked: the pod and options of the job.
        job: its name.
        own: its workers.
        now: epoch seconds.
    """
    if asked.options.queue is None:
        return Waiting()
    try:
        if asked.options.queueing == "volcano":
            return Waiting(await _volcano(reader, asked, asked.options.queue, own, now) if own else ())
        return await _kueue(reader, asked, job, own, now) if asked.options.by_kueue else Waiting()
    except Forbidden as error:
        rights = ", ".join(one.full_name for one in _RIGHTS[asked.options.queueing])
        return Waiting(
            (), f"who waits in the queue is not seen: {error}. Grant `list` of {rights} in all namespaces"
        )


_RIGHTS = {
    "kueue": (WORKLOADS, LOCAL_QUEUES, CLUSTER_QUEUES),
    "volcano": (PODGROUPS, VOLCANO_QUEUES),
}


async def _kueue(reader: Reader, asked: Asked, job: str, own: Sequence[Worker], now: float) -> Waiting:
    workloads = await reader.list(WORKLOADS, EVERYWHERE, kueue_claims.slim)
    namespace = asked.options.namespace
    priority = kueue_claims.priority(workloads, namespace, job)
    mine = kueue_claims.ours(workloads, namespace, job, requested(asked.pod), len(own)) if own else None
    if mine is None or not any(one["waits"] for one in workloads):
        return Waiting(priority=priority)
    local = await reader.list(LOCAL_QUEUES, EVERYWHERE)
    queues = await reader.list(CLUSTER_QUEUES, EVERYWHERE)
    cohorts, _ = await cohorts_of(reader)

    def find() -> tuple[Claim, ...]:
        return tuple(kueue_claims.claims(mine, workloads, local, Quotas(queues, cohorts), now))

    return Waiting(await asyncio.to_thread(find), priority=priority)


async def _volcano(
    reader: Reader, asked: Asked, name: str, own: Sequence[Worker], now: float
) -> tuple[Claim, ...]:
    groups = await reader.list(PODGROUPS, EVERYWHERE, volcano.slim)
    _, queue = await volcano_queue(reader, name)
    waiting = volcano.waiting(groups, name, (await reader.view()).unplaced)
    priority = max(worker.pod["spec"]["priority"] for worker in own)
    return tuple(volcano.claims(queue, waiting, priority, requested(asked.pod), len(own), now))
