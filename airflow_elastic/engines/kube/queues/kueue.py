"""Kueue: why a job is not admitted, or was stopped. Kueue says so in a Workload, one for each queued job.

Seen with Kueue 0.16: it suspends the job when it is created and when it is preempted. On each change of its size it
ends all pods and queues the job again. Only batch Jobs with ELASTIC_ANNOTATION change in place, if the cluster's
feature gate allows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube.resources import JOBS, Resource
from airflow_elastic.engines.kube.render.names import QUEUE_LABEL
from airflow_elastic.engines.kube.render.pod import queue_labels
from airflow_elastic.launchers import find_launcher
from airflow_elastic.spec.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_elastic.engines.api import Job
    from airflow_elastic.engines.kube.options import KubeOptions

WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload", needs="Kueue 0.15 or newer")

ELASTIC_ANNOTATION = "kueue.x-k8s.io/elastic-job"

#: On a batch Job: the fewest of its pods that it may begin with.
FEWEST_ANNOTATION = "kueue.x-k8s.io/job-min-parallelism"

#: On a Job that is admitted with fewer pods: `completions` follow.
_EQUAL_ANNOTATION = "kueue.x-k8s.io/job-completions-equal-parallelism"

#: On a Workload: the uid of its job.
JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"

#: On plain pods: their group, and how many pods it has.
GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
GROUP_COUNT_ANNOTATION = "kueue.x-k8s.io/pod-group-total-count"

_TELLING = ("Finished", "Evicted", "QuotaReserved")


def changes_in_place(resource: Resource, options: KubeOptions) -> bool:
    """Whether jobs of this kind may change their size without losing all their pods, and within their quota."""
    if not options.by_kueue:
        return True
    return resource == JOBS and options.annotations.get(ELASTIC_ANNOTATION) == "true"


def refuse_change(resource: Resource, options: KubeOptions, name: str, *, below: bool) -> None:
    """Refuse to change the size of a job that would lose all its pods, or of one `below` it. Raises EngineError."""
    if not changes_in_place(resource, options):
        what = "not see it, nor count them" if below else "end all its pods and queue it again"
        raise EngineError(f"if the workers of {name} changed, Kueue would {what}")


def annotated(annotations: Mapping[str, str], job: Job, options: KubeOptions, pods: int) -> dict[str, str]:
    """A batch Job's annotations. One of them lets Kueue admit it with fewer `pods`, if there is no room for all.

    Kueue then lowers `parallelism`, and leaves it there. Only our own agents train without the missing workers. The
    annotation is left out if the user requires all workers, or lets Kueue lower `completions` too.
    """
    in_place = changes_in_place(JOBS, options) or annotations.get(_EQUAL_ANNOTATION) == "true"
    begins_small = not in_place and find_launcher(job.spec.launcher).elastic
    fewest = str(job.spec.workers.at_least if begins_small else job.workers)
    rest = {name: value for name, value in annotations.items() if name != FEWEST_ANNOTATION}
    given = annotations.get(FEWEST_ANNOTATION, fewest)
    whole = given.isdecimal() and len(given) < 30 and int(given) >= pods
    return rest if whole else {**rest, FEWEST_ANNOTATION: given}


def is_queued(owner: dict[str, Any]) -> bool:
    """Whether a (whole) job is queued, even if no queue was named: a queue called default takes all jobs."""
    return QUEUE_LABEL in (owner["metadata"].get("labels") or {})


def group(job: Job, options: KubeOptions) -> dict[str, dict[str, str]]:
    """Labels and annotations of pods that are one group in a queue, if Kueue does not know their owner.

    Its Workload has the job's name. It is made when all pods exist.
    """
    metadata = {"labels": {**queue_labels(options), GROUP_LABEL: job.name}}
    return {**metadata, "annotations": {GROUP_COUNT_ANNOTATION: str(job.workers)}}


def slim(workload: dict[str, Any]) -> dict[str, Any]:
    """The parts of a Workload that are read."""
    conditions = workload.get("status", {}).get("conditions", ())
    return {
        "active": workload["spec"].get("active", True),
        "name": workload["metadata"].get("name"),
        "owners": [owner["uid"] for owner in workload["metadata"].get("ownerReferences", ())],
        "conditions": {one["type"]: one for one in conditions if one["type"] in _TELLING},
    }


def may_run(workload: dict[str, Any]) -> bool:
    """Whether Kueue lets the job of this (slim) Workload run, now or later."""
    return workload["active"] and not _holds(workload["conditions"], "Finished", "True")


def is_evicted(workload: dict[str, Any]) -> bool:
    """Whether Kueue has seen that the job of this (slim) Workload must not run, and will not start it any more."""
    conditions = workload["conditions"]
    evicted = not workload["active"] and _holds(conditions, "Evicted", "True")
    return evicted or _holds(conditions, "Finished", "True")


def why_held(workloads: Iterable[dict[str, Any]], owner: Mapping[str, Any]) -> str | None:
    """Kueue's words about the job, or the group with its name, that it does not let run; None if there are none."""
    uid, name = owner["metadata"]["uid"], owner["metadata"]["name"]
    for workload in workloads:
        conditions = workload["conditions"]
        theirs = uid not in workload["owners"] and workload["name"] != name
        if theirs or _holds(conditions, "Finished", "True"):
            continue
        for kind, status in (("Evicted", "True"), ("QuotaReserved", "False")):
            if _holds(conditions, kind, status):
                return str(conditions[kind].get("message") or conditions[kind].get("reason"))
    return None


def _holds(conditions: dict[str, Any], kind: str, status: str) -> bool:
    return kind in conditions and conditions[kind]["status"] == status
