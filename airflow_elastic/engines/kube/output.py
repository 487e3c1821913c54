"""Keeps the output of failed containers beside the logs of the run, before their pods are removed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_elastic.adapters.kube import Client, KubeError
from airflow_elastic.engines.kube.watch import pod_status
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.engines.api import Job

log = logging.getLogger(__name__)

#: From so many failed containers, without a report of our agent, so many lines are kept.
_PODS, _LINES = 4, 2000

#: The longest wait for them, in seconds: training should go on.
_SECONDS = 2.0


class Where(NamedTuple):
    """The training containers: their cluster, their namespace and their name."""

    client: Client
    namespace: str
    container: str


async def keep_output(
    where: Where, open_store: Callable[[], Store], job: Job, pods: list[dict[str, Any]]
) -> None:
    """Copy the output of containers that failed into the run. Best effort.

    Args:
        where: the containers.
        open_store: opens the run's store.
        job: their job.
        pods: of the job, slim.
    """
    failed = [
        (pod["metadata"]["name"], container)
        for pod in pods
        for container in pod_status.failed_without_report(pod, where.container)
    ]
    if not failed:
        return
    store = await asyncio.to_thread(open_store)

    async def keep(pod: str, container: str) -> None:
        name = f"pod-{pod}" if container == where.container else f"pod-{pod}-{container}"
        data = await where.client.log(where.namespace, pod, container, tail=_LINES)
        await asyncio.to_thread(store.put, f"{layout.attempt_logs(job.attempt)}{name}.log", data)

    try:
        async with asyncio.timeout(_SECONDS):
            await asyncio.gather(*(keep(*one) for one in failed[:_PODS]))
    except (TimeoutError, KubeError, StoreError) as error:
        log.info("the output of %s could not be kept: %s", job.name, error or "no answer")
