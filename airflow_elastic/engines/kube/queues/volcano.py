"""Volcano: the pods of a job are one gang in one queue.

A PodGroup says how many of them are worth starting. Volcano's scheduler starts nobody before so many fit, and the rest
as room comes: where `workers.min` is below the count, training may begin small and grow.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube.resources import Resource
from airflow_elastic.engines.kube.pod import named

if TYPE_CHECKING:
    from airflow_elastic.engines.api import Job
    from airflow_elastic.engines.kube.kind import Kind
    from airflow_elastic.engines.kube.options import KubeOptions

PODGROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", needs="Volcano")


def objects(kind: Kind, job: Job, options: KubeOptions) -> list[tuple[Resource, dict[str, Any]]]:
    """All objects of a job in the order of their creation: the kind's, and before them the gang where it is one."""
    rendered = kind.render(job, options)
    return rendered if options.queueing != "volcano" else [(PODGROUPS, _group(job, options)), *rendered]


def _group(job: Job, options: KubeOptions) -> dict[str, Any]:
    workers = job.spec.workers
    fewest = min(job.workers, workers.at_least)
    spec: dict[str, Any] = {"minMember": fewest}
    if options.queue:
        spec["queue"] = options.queue
    if options.priority_class:
        spec["priorityClassName"] = options.priority_class
    if workers.resources:
        # The queue is asked for so much before a pod is looked at.
        spec["minResources"] = {name: _times(fewest, amount) for name, amount in workers.resources.items()}
    return {
        "apiVersion": PODGROUPS.api_version,
        "kind": PODGROUPS.kind,
        "metadata": named(job, options),
        "spec": spec,
    }


def _times(count: int, amount: str) -> str:
    """A quantity so many times: 3 times `1.5Gi` is `4.5Gi`."""
    number = amount.rstrip("EPTGMkim")  # the unit's letters; `check` has seen that it is one
    return f"{count * Decimal(number):f}{amount.removeprefix(number)}"
