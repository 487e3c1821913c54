"""Volcano: the pods of a job are one gang in one queue.

A PodGroup has the fewest pods to start with. Volcano's scheduler starts no pod before so many fit, and the rest when
there is room. With `workers.min` below the count, training may begin small and grow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube.resources import Resource
from airflow_elastic.engines.kube.queues.gang import min_to_start
from airflow_elastic.engines.kube.render.pod import named
from airflow_elastic.engines.quantities import times
from airflow_elastic.spec.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_elastic.engines.api import Job
    from airflow_elastic.engines.kube.options import KubeOptions

#: Fields of a PodGroup, and their names in a `schedulingPolicy`.
_POLICY = {
    "minMember": "minAvailable",
    "queue": "queue",
    "priorityClassName": "priorityClass",
    "minResources": "minResources",
}

#: And their names in a run.
_SAID_AS = {
    "minAvailable": "it is workers.min",
    "queue": "say it as engine_options.queue",
    "priorityClass": "say it as engine_options.priority_class",
    "minResources": "it is workers.resources times workers.min",
}

PODGROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", needs="Volcano")


def objects(job: Job, options: KubeOptions) -> list[tuple[Resource, dict[str, Any]]]:
    """The gang of a job, which is made before the job; empty if it has none."""
    if options.queueing != "volcano":
        return []
    head = {"apiVersion": PODGROUPS.api_version, "kind": PODGROUPS.kind}
    return [(PODGROUPS, {**head, "metadata": named(job, options), "spec": _gang(job, options)})]


def policy(job: Job, options: KubeOptions) -> dict[str, Any]:
    """The gang in the form of a training-operator's `schedulingPolicy`; empty if there is none.

    An operator with `--gang-scheduler-name=volcano` writes it over the PodGroup.
    """
    gang = _gang(job, options) if options.queueing == "volcano" else {}
    return {_POLICY[name]: value for name, value in gang.items()}


def check_policy(policy: Mapping[str, Any], options: KubeOptions) -> list[Problem]:
    """The parts of a user's `schedulingPolicy` that would contradict the PodGroup of the run."""
    if options.queueing != "volcano":
        return []
    return [
        Problem(
            f"engine_options.run_policy.schedulingPolicy.{name}", policy[name], f"nothing with volcano: {how}"
        )
        for name, how in _SAID_AS.items()
        if name in policy
    ]


def _gang(job: Job, options: KubeOptions) -> dict[str, Any]:
    count = min_to_start(job)
    spec: dict[str, Any] = {"minMember": count}
    if options.queue:
        spec["queue"] = options.queue
    if options.priority_class:
        spec["priorityClassName"] = options.priority_class
    if job.spec.workers.resources:
        # The queue must have room for so much before a pod is looked at.
        spec["minResources"] = {
            name: times(count, amount) for name, amount in job.spec.workers.resources.items()
        }
    return spec
