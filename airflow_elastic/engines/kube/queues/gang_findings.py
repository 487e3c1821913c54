"""The findings of `doctor` about the gangs that a cluster supports: those of Kubernetes and of Volcano."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube import KubeError, OverQuota, Resource
from airflow_elastic.adapters.kube.resources import EVENTS, JOBS
from airflow_elastic.engines.api import Finding
from airflow_elastic.engines.kube.queues import native
from airflow_elastic.engines.kube.queues.volcano import PODGROUPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_elastic.adapters.kube import Client

#: Where Volcano is installed, by its manifests and its chart, and the name of its scheduler's image.
_VOLCANO = "volcano-system"
_SCHEDULER = re.compile(r"(?:^|/)vc-scheduler:v?(\d+)\.(\d+)([^@]*)")
_DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")

#: The first version that marks a preempted pod itself, by the condition DisruptionTarget.
_SAYS_SO = (1, 13)

_UNTOLD = (
    "reports a preemption only in Events, which may not be read. So a preemption counts as a lost worker, and uses "
    "a restart: grant `list events`, or install Volcano 1.13"
)


async def findings(client: Client, namespace: str) -> list[Finding]:
    """The gangs that workers of the engine `job` can be, in this cluster and namespace."""
    return [
        *await _of_kubernetes(client, namespace),
        *await _of_volcano(client, namespace),
    ]


async def _of_kubernetes(client: Client, namespace: str) -> list[Finding]:
    """Sends a Job with a gang as a dry run: the API server checks it and does not create it."""
    subject = "job: queueing native"
    if not await client.allowed("create", JOBS, namespace):
        return []  # another finding reports what is missing
    asked = gang()
    try:
        made = await client.create(JOBS, namespace, asked, dry_run=True)
    except KubeError as error:
        lacks = native.unknown(str(error))
        if lacks is None and isinstance(error, OverQuota):
            return []
        text = lacks or f"it is unknown whether Jobs can be gangs: {error}"
        return [Finding(subject, False, text, needed=False, part=True)]
    if told := native.dropped_gang(asked, made):
        return [Finding(subject, False, f"{client.server} {told}", needed=False, part=True)]
    return [Finding(subject, True, "Jobs can be gangs of Kubernetes' own, in one topology, too", part=True)]


def gang() -> dict[str, Any]:
    """A Job that is a gang of one, in one zone, and that never runs."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "any"}]}
    scheduling = {
        "schedulingPolicy": {"gang": {"minCount": 1}},
        "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/zone"}]},
        "disruptionMode": {"single": {}},
    }
    spec = {"suspend": True, "template": {"spec": pod}, "scheduling": scheduling}
    metadata = {"generateName": "airflow-elastic-doctor-"}
    return {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": metadata, "spec": spec}


async def _of_volcano(client: Client, namespace: str) -> list[Finding]:
    if not await client.knows(PODGROUPS):
        return []
    try:
        deployments, _ = await client.list(_DEPLOYMENTS, _VOLCANO)
    except KubeError:
        deployments = []
    tells = await client.allowed("list", EVENTS, namespace)
    return [of_version(version_in(deployments), may_read_events=tells)]


def version_in(deployments: Iterable[Mapping[str, Any]]) -> tuple[int, int, str] | None:
    """The version of Volcano, as the image of its scheduler says it; None where none does."""
    for deployment in deployments:
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            if found := _SCHEDULER.search(container.get("image") or ""):
                return int(found[1]), int(found[2]), found[3]
    return None


def of_version(version: tuple[int, int, str] | None, *, may_read_events: bool) -> Finding:
    """The finding about this version of Volcano."""
    subject = "job: queueing volcano"
    if version is not None and version[:2] >= _SAYS_SO:
        return Finding(subject, True, f"Volcano {_written(version)} is installed", part=True)
    named = (
        "the version of Volcano is unknown; up to 1.12 it"
        if version is None
        else f"Volcano {_written(version)}"
    )
    if may_read_events:
        text = f"{named} reports preemptions only in Events, which may be read"
        return Finding(subject, True, text, part=True)
    return Finding(subject, False, f"{named} {_UNTOLD}", needed=False, part=True)


def _written(version: tuple[int, int, str]) -> str:
    return f"{version[0]}.{version[1]}{version[2]}"
