"""Which run an object on a cluster belongs to: it has the run's URI and digest, or belongs to somebody else."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube import Missing
from airflow_elastic.engines.kube.render.pod import DIGEST_ANNOTATION, URI_ANNOTATION
from airflow_elastic.spec.errors import EngineError, SubmitRefused

if TYPE_CHECKING:
    from airflow_elastic.adapters.kube import Client, Conflict, Resource
    from airflow_elastic.engines.api import Job


def owned(body: dict[str, Any], owner: dict[str, Any], *, controls: bool = False) -> dict[str, Any]:
    """The object with an owner, so that the cluster removes both together. `controls`: the owner also controls it."""
    reference: dict[str, Any] = {key: owner[key] for key in ("apiVersion", "kind")}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    if controls:
        reference["controller"] = True
    return {**body, "metadata": {**body["metadata"], "ownerReferences": [reference]}}


def is_ours(found: dict[str, Any], job: Job) -> bool:
    """Whether an object with the job's name belongs to this run."""
    annotations = found["metadata"].get("annotations") or {}
    return (annotations.get(URI_ANNOTATION), annotations.get(DIGEST_ANNOTATION)) == (
        job.run_uri,
        job.spec.digest,
    )


def adopt(found: dict[str, Any], job: Job, conflict: Conflict) -> None:
    """Use an existing object instead of a new one; refuse it if it is being deleted, or belongs to another run."""
    if not is_ours(found, job):
        raise SubmitRefused(
            f"{conflict}; it is not this run's, and is left alone: use another name or namespace"
        )
    if found["metadata"].get("deletionTimestamp"):
        raise EngineError(f"{conflict}, and is just being deleted")


async def end_found(client: Client, namespace: str, job: Job, resource: Resource) -> None:
    """Delete the object with the job's name, if it exists and belongs to this run."""
    with contextlib.suppress(Missing):
        found = await client.get(resource, namespace, job.name)
        if is_ours(found, job):
            await client.delete(resource, namespace, job.name, uid=found["metadata"]["uid"])
