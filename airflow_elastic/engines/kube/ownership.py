"""Whose an object on a cluster is: it bears the run's URI and digest, or it belongs to somebody else."""

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
    """The object, to be removed by the cluster together with its owner; which `controls` it, if that is said."""
    reference: dict[str, Any] = {key: owner[key] for key in ("apiVersion", "kind")}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    if controls:
        reference["controller"] = True
    return {**body, "metadata": {**body["metadata"], "ownerReferences": [reference]}}


def is_ours(found: dict[str, Any], job: Job) -> bool:
    """Whether an object of the job's name is this run's."""
    annotations = found["metadata"].get("annotations") or {}
    return (annotations.get(URI_ANNOTATION), annotations.get(DIGEST_ANNOTATION)) == (
        job.run_uri,
        job.spec.digest,
    )


def adopt(found: dict[str, Any], job: Job, conflict: Conflict) -> None:
    """Take what was there for what was to be made; refuse it where it goes, or is not this run's."""
    if not is_ours(found, job):
        raise SubmitRefused(
            f"{conflict}; it is not this run's, and is left alone: use another name or namespace"
        )
    if found["metadata"].get("deletionTimestamp"):
        raise EngineError(f"{conflict}, and is just being deleted")


async def end_found(client: Client, namespace: str, job: Job, resource: Resource) -> None:
    """Delete the object of the job's name, where it is there and this run's."""
    with contextlib.suppress(Missing):
        found = await client.get(resource, namespace, job.name)
        if is_ours(found, job):
            await client.delete(resource, namespace, job.name, uid=found["metadata"]["uid"])
