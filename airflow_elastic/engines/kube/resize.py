"""Processors and memory of running workers, changed in place: `pods/resize` of Kubernetes 1.33 and newer.

No container is restarted. A later pod has the amounts of its job's template: call this again once it exists. Only the
container's own status shows what the node has done, because the pod's spec has the new amounts at once. Seen on 1.37:
more than the node has is refused at the request. What has no room now is deferred, and done when there is room. A limit
below the used memory is tried as long as it is below.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube import KubeError, Missing, NoSuchKind
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.engines.api import Outcome, Resized
from airflow_elastic.engines.quantities import ALLOWED, is_quantity, number_of
from airflow_elastic.spec.errors import Problem, SpecError

if TYPE_CHECKING:
    from airflow_elastic.adapters.kube import Client
    from airflow_elastic.engines.kube.kind import Kind

#: The resources that Kubernetes can change in a running pod.
NAMES = ("cpu", "memory")

#: A node with room does it within this time, in seconds.
_DONE_SECONDS = 5.0
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers to change.

    Attributes:
        client: of the cluster.
        namespace: of the pods.
        kind: of the job; it knows the pods, their numbers, and the training container.
    """

    client: Client
    namespace: str
    kind: Kind


async def resize(workers: Workers, job: str, resources: Mapping[str, str]) -> tuple[Resized, ...]:
    """Give each worker of a job these resources; returns the results, in the order of their numbers.

    Raises:
        SpecError: these resources cannot be changed in a running pod, or are no quantities.
        KubeError: the cluster is out of reach; trying again does no harm.
    """
    check(resources)
    pods, _ = await workers.client.list(PODS, workers.namespace, labels=f"{workers.kind.pod_label}={job}")
    numbers = {pod["metadata"]["name"]: workers.kind.index(pod) for pod in pods if _is_there(pod)}
    found = sorted((number, name) for name, number in numbers.items() if number is not None)
    return tuple(await asyncio.gather(*(_resized(workers, n, name, resources) for n, name in found)))


def check(resources: Mapping[str, str]) -> None:
    """Refuse resources that cannot change in a running pod. Raises SpecError."""
    problems = (
        [Problem("resources", dict(resources), "at least one of cpu and memory")] if not resources else []
    )
    for name, amount in resources.items():
        if name not in NAMES:
            allowed = f"{' and '.join(NAMES)}: Kubernetes changes nothing else of a running pod"
            problems.append(Problem(f"resources.{name}", amount, allowed))
        elif not isinstance(amount, str) or not is_quantity(amount):
            problems.append(Problem(f"resources.{name}", amount, ALLOWED))
    if problems:
        raise SpecError(*problems)


def outcome(
    pod: Mapping[str, Any], container: str, wanted: Mapping[str, str]
) -> tuple[Outcome, str | None] | None:
    """The result of the change, as the pod shows it; None while its node works on it."""
    status = pod.get("status", {})
    found = [one for one in status.get("containerStatuses", ()) if one["name"] == container]
    if not found or "running" not in found[0]["state"]:
        return Outcome.DEFERRED, "its container has not started yet, and starts with that"
    if _has(found[0].get("resources") or {}, wanted):
        return Outcome.DONE, None
    conditions = {one["type"]: one for one in status.get("conditions", ()) if one["status"] == "True"}
    pending, at_work = conditions.get("PodResizePending"), conditions.get("PodResizeInProgress", {})
    if pending is not None:
        what = Outcome.REFUSED if pending.get("reason") == "Infeasible" else Outcome.DEFERRED
        return what, pending.get("message") or pending.get("reason")
    if at_work.get("reason") == "Error":
        return Outcome.DEFERRED, at_work.get("message") or "its node has failed to do it, and tries again"
    return None


def _has(resources: Mapping[str, Mapping[str, str]], wanted: Mapping[str, str]) -> bool:
    return all(
        name in resources.get(part, {}) and number_of(resources[part][name]) == number_of(amount)
        for part in ("requests", "limits")
        for name, amount in wanted.items()
    )


def _is_there(pod: Mapping[str, Any]) -> bool:
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return not ended and "deletionTimestamp" not in pod["metadata"]


async def _resized(workers: Workers, number: int, pod: str, resources: Mapping[str, str]) -> Resized:
    name, client = f"node-{number}", workers.client
    container = {
        "name": workers.kind.container,
        "resources": {"requests": {**resources}, "limits": {**resources}},
    }
    try:
        body = {"spec": {"containers": [container]}}
        await client.patch(PODS, workers.namespace, pod, body, "resize", by_name=True)
        return Resized(name, *await _come_of_it(workers, pod, resources))
    except NoSuchKind:
        reason = f"{client.server} cannot change running pods: that takes Kubernetes 1.33 or newer"
        return Resized(name, Outcome.REFUSED, reason)
    except Missing:
        return Resized(name, Outcome.REFUSED, "its pod has gone")
    except KubeError as error:
        if not error.is_final:
            raise
        return Resized(name, Outcome.REFUSED, str(error))


async def _come_of_it(workers: Workers, pod: str, resources: Mapping[str, str]) -> tuple[Outcome, str | None]:
    loop, fields = asyncio.get_running_loop(), f"metadata.name={pod}"
    began = loop.time()
    while loop.time() - began < _DONE_SECONDS:
        pods, _ = await workers.client.list(PODS, workers.namespace, fields=fields)
        if not pods:
            return Outcome.REFUSED, "its pod has gone"
        if (found := outcome(pods[0], workers.kind.container, resources)) is not None:
            return found
        await asyncio.sleep(_LOOK_SECONDS)
    return Outcome.DEFERRED, "its node has not done it yet: the container may use more than that"
