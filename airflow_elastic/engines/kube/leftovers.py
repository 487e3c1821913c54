"""Jobs on a cluster that have our label, even if their controllers are gone."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.adapters.kube.errors import Forbidden, NoSuchKind
from airflow_elastic.adapters.kube.hub import hub
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.engines.api import engine_names, find_engine
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.render.pod import ATTEMPT_LABEL, JOB_LABEL, URI_ANNOTATION

if TYPE_CHECKING:
    from airflow_elastic.adapters.kube import Access


@dataclass(frozen=True, slots=True)
class Leftover:
    """A job's own object on a cluster.

    Attributes:
        engine: of its kind.
        namespace: where it is.
        name: of the job.
        uid: distinguishes it from a later object of the same name.
        run_uri: where its run is, or was, stored.
        attempt: number of the attempt.
    """

    engine: str
    namespace: str
    name: str
    uid: str
    run_uri: str
    attempt: int


def cluster_engines(access: Access | None = None) -> list[KubeEngine]:
    """One engine of each installed kind that runs workers on a cluster."""
    found = (find_engine(name) for name in engine_names())
    return [type(engine)(access=access) for engine in found if isinstance(engine, KubeEngine)]


async def find(access: Access, namespace: str) -> list[Leftover]:
    """All jobs with our label in a namespace, of all kinds that the cluster knows. Raises KubeError."""
    jobs: list[Leftover] = []
    async with hub(access) as shared:
        for engine in cluster_engines():
            try:
                owners, _ = await shared.client.list(engine.kind.resource, namespace, labels=JOB_LABEL)
            except NoSuchKind:
                continue
            for owner in owners:
                metadata = owner["metadata"]
                uri = (metadata.get("annotations") or {}).get(URI_ANNOTATION)
                attempt = metadata["labels"].get(ATTEMPT_LABEL, "")
                if uri and attempt.isdigit():
                    jobs.append(
                        Leftover(engine.name, namespace, metadata["name"], metadata["uid"], uri, int(attempt))
                    )
    return jobs


async def remove(access: Access, job: Leftover) -> None:
    """Remove a job whose run is gone, with its pods. Raises KubeError."""
    async with hub(access) as shared:
        engine = next(engine for engine in cluster_engines() if engine.name == job.engine)
        await shared.client.delete(engine.kind.resource, job.namespace, job.name, uid=job.uid)
        selector = f"{engine.kind.pod_label}={job.name}"
        await shared.client.delete_all(PODS, job.namespace, labels=selector, grace_seconds=0)
        with contextlib.suppress(NoSuchKind, Forbidden):  # without this right the job is in no queue
            await engine.let_go(shared, job.namespace, job.name)
