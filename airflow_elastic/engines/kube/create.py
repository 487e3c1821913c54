"""Creates the objects of a job on a cluster, or adopts those that are already there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube import Conflict
from airflow_elastic.adapters.records.job_files import JobRecord, Members
from airflow_elastic.engines.kube.ownership import adopt, owned
from airflow_elastic.engines.kube.queues import native, volcano
from airflow_elastic.spec.errors import EngineError, SubmitRefused

if TYPE_CHECKING:
    from airflow_elastic.adapters.kube import Resource
    from airflow_elastic.adapters.kube.hub import Hub
    from airflow_elastic.adapters.records.job_files import JobFiles
    from airflow_elastic.engines.api import Job
    from airflow_elastic.engines.kube.kind import Kind
    from airflow_elastic.engines.kube.options import KubeOptions


Rendered = list[tuple["Resource", dict[str, Any]]]


def objects(kind: Kind, job: Job, options: KubeOptions) -> list[tuple[Resource, dict[str, Any]]]:
    """All objects of a job in the order of their creation: the kind's, and before them a gang if it is an object."""
    return [*volcano.objects(job, options), *kind.render(job, options)]


def write_down(files: JobFiles, job: Job, python: str, standby: int) -> None:
    """Write a job's record, its first workers, and its standby workers, before its objects are created.

    Args:
        files: the job's documents.
        job: the job.
        python: the interpreter in its pods.
        standby: how many standby workers it has from the start.

    Raises:
        EngineError: the job has been deleted.
        SubmitRefused: another job of this name is there.
    """
    known = job.name, job.run_uri, job.attempt, job.spec, job.spec.digest, "", python
    record = JobRecord(*known, job.standby, job.origin)
    if files.closed:
        raise EngineError(f"job {job.name} has been deleted: it is not started again")
    if not files.create("job.json", record) and not record.is_same(files.record):
        raise SubmitRefused(f"{job.run_uri} holds another job {job.name}: use another run URI")
    if standby:
        files.ask_standby(standby, lambda index: False, first=job.workers)
    files.begin(Members(1, tuple(range(job.workers)), 0.0))


async def create(shared: Hub, kind: Kind, job: Job, options: KubeOptions, made_of: Rendered) -> None:
    """Create all objects of a job, in this order. The first caller creates them; all others adopt them.

    Raises:
        KubeError: as the API server answers.
        SubmitRefused: an object belongs to another run; or the cluster has dropped the gang from the job.
    """
    owner: dict[str, Any] | None = None
    before: list[Resource] = []
    for resource, rendered in made_of:
        body = rendered if owner is None else owned(rendered, owner)
        try:
            if native.is_gang(body):  # a dry run first: its pods could train until the Job is deleted
                would = await shared.client.create(resource, options.namespace, body, dry_run=True)
                if dropped := native.dropped_gang(body, would):
                    raise SubmitRefused(f"{shared.client.server} {dropped}", for_now=True)
            made = await shared.client.create(resource, options.namespace, body)
        except Conflict as conflict:
            made = await shared.client.get(resource, options.namespace, job.name)
            adopt(made, job, conflict)
        if dropped := native.dropped_gang(body, made):
            # Now, and not at the end of the attempt: it would train without its gang.
            uid = made["metadata"]["uid"]
            await shared.client.delete(resource, options.namespace, job.name, uid=uid, grace_seconds=0)
            raise SubmitRefused(f"{shared.client.server} {dropped}", for_now=True)
        if resource == kind.resource:
            owner = {"apiVersion": resource.api_version, "kind": resource.kind, **made}
        elif owner is None:
            before.append(resource)
    for resource in before:
        # Operators that wait for a gang only hear of gangs that they control.
        controls = resource == volcano.PODGROUPS
        body = owned({"metadata": {}}, owner or {}, controls=controls)
        await shared.client.patch(resource, options.namespace, job.name, body)
