"""Making the objects of a job on a cluster, or taking those that are there already for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube import Conflict
from airflow_elastic.engines.kube.ownership import adopt, owned
from airflow_elastic.engines.kube.queues import native, volcano
from airflow_elastic.spec.errors import SubmitRefused

if TYPE_CHECKING:
    from airflow_elastic.adapters.kube import Resource
    from airflow_elastic.adapters.kube.hub import Hub
    from airflow_elastic.engines.api import Job
    from airflow_elastic.engines.kube.kind import Kind
    from airflow_elastic.engines.kube.options import KubeOptions


Rendered = list[tuple["Resource", dict[str, Any]]]


def objects(kind: Kind, job: Job, options: KubeOptions) -> list[tuple[Resource, dict[str, Any]]]:
    """All objects of a job in the order of their creation: the kind's, and before them a gang that is an object."""
    return [*volcano.objects(job, options), *kind.render(job, options)]


async def create(shared: Hub, kind: Kind, job: Job, options: KubeOptions, made_of: Rendered) -> None:
    """Make all objects of a job, in this order. Whoever is first has made them; all others adopt them.

    Raises:
        KubeError: as the API server answers.
        SubmitRefused: there is one of another run; or what the cluster has made is no gang, as was asked for.
    """
    owner: dict[str, Any] | None = None
    before: list[Resource] = []
    for resource, rendered in made_of:
        body = rendered if owner is None else owned(rendered, owner)
        try:
            if native.is_gang(body):  # asked before it is made: pods could train until the Job is deleted
                would = await shared.client.create(resource, options.namespace, body, dry_run=True)
                if dropped := native.dropped(body, would):
                    raise SubmitRefused(f"{shared.client.server} {dropped}", for_now=True)
            made = await shared.client.create(resource, options.namespace, body)
        except Conflict as conflict:
            made = await shared.client.get(resource, options.namespace, job.name)
            adopt(made, job, conflict)
        if dropped := native.dropped(body, made):
            # Now, and not when the attempt is over: it would train as what it was not to be.
            uid = made["metadata"]["uid"]
            await shared.client.delete(resource, options.namespace, job.name, uid=uid, grace_seconds=0)
            raise SubmitRefused(f"{shared.client.server} {dropped}", for_now=True)
        if resource == kind.resource:
            owner = {"apiVersion": resource.api_version, "kind": resource.kind, **made}
        elif owner is None:
            before.append(resource)
    for resource in before:
        # Operators that wait for a gang hear only of those that they control.
        controls = resource == volcano.PODGROUPS
        body = owned({"metadata": {}}, owner or {}, controls=controls)
        await shared.client.patch(resource, options.namespace, job.name, body)
