"""Kubernetes' own gangs, which a Job asks for in `spec.scheduling` (1.37, alpha).

Seen with 1.37.2: the scheduler starts nobody before `minCount` pods of a Job have room, and the rest as room comes.
Pods that have ended do not count: where fewer than `minCount` are left that can start, they wait for ever, and nothing
says so. Without a `minCount` it is the Job's `parallelism`, and follows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_elastic.engines.kube.queues.gang import fewest, shrinks
from airflow_elastic.spec.errors import Problem
from airflow_elastic.spec.status import Waiting, WorkerStatus

if TYPE_CHECKING:
    from airflow_elastic.engines.api import Job
    from airflow_elastic.engines.kube.options import KubeOptions

_CONSTRAINTS = "scheduling.schedulingConstraints"

#: The gates without which an API server drops what it is given, without a word.
_GATES = {
    "scheduling": "GenericWorkload and WorkloadWithJob",
    _CONSTRAINTS: "TopologyAwareWorkloadScheduling",
}


def check(engine: str, options: KubeOptions) -> list[Problem]:
    """What cannot be said of a gang of Kubernetes' own, or only of one."""
    problems = []
    if options.queueing != "native":
        if options.disruption_mode is not None:
            allowed = "unset without queueing: native: only gangs of Kubernetes' own have one"
            problems.append(Problem("engine_options.disruption_mode", options.disruption_mode, allowed))
        return problems
    if engine != "job":
        allowed = f"kueue or volcano with {engine}: of all kinds only Jobs can be gangs of Kubernetes' own (engine job)"
        problems.append(Problem("engine_options.queueing", "native", allowed))
    if options.queue is not None:
        allowed = "unset with queueing: native: Kubernetes' gangs wait in no queue"
        problems.append(Problem("engine_options.queue", options.queue, allowed))
    return problems


def scheduling(job: Job, options: KubeOptions) -> dict[str, Any]:
    """What a Job says of its gang, as part of its `spec`; nothing where it is none."""
    if options.queueing != "native":
        return {}
    mode = options.disruption_mode or ("single" if shrinks(job) else "all")
    laid = {"schedulingPolicy": {"gang": {"minCount": fewest(job)}}, "disruptionMode": {mode: {}}}
    if options.topology is not None:
        laid["schedulingConstraints"] = {"topology": [{"key": options.topology}]}
    return {"scheduling": laid}


def is_gang(body: Mapping[str, Any]) -> bool:
    """Whether this object asks Kubernetes for a gang."""
    return "scheduling" in body.get("spec", {})


def dropped(asked: Mapping[str, Any], made: Mapping[str, Any]) -> str | None:
    """What the API server has not taken over of the gang that was asked for, and what it needs for that; or None."""
    lacking = _lacking(
        "scheduling", asked.get("spec", {}).get("scheduling"), made.get("spec", {}).get("scheduling")
    )
    for path in lacking:
        gates = next(gates for above, gates in reversed(_GATES.items()) if path.startswith(above))
        return (
            f"has dropped spec.{path}, so that the workers would be no such gang: turn on the feature gates {gates} "
            "(Kubernetes 1.37), or set queueing"
        )
    return None


def unknown(said: str) -> str | None:
    """What a cluster needs that refuses a Job with these words, as it is older than gangs; or None."""
    return "queueing: native needs Kubernetes 1.37" if 'unknown field "spec.scheduling"' in said else None


def _lacking(path: str, asked: Any, made: Any) -> Iterator[str]:
    if isinstance(asked, Mapping):
        if not isinstance(made, Mapping):
            yield path
            return
        for key, value in asked.items():
            yield from _lacking(f"{path}.{key}", value, made.get(key))
    elif asked is not None and made is None:
        yield path


def gang_of(job: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is kept of the gang of a (whole) Job, whoever has asked for it; None where it is none.

    `least`: its `minCount`, None where that follows the Job's parallelism; `group`: one that somebody else has made.
    """
    spec = job["spec"]
    policy = (spec.get("scheduling") or {}).get("schedulingPolicy") or {}
    group = (spec.get("template", {}).get("spec", {}).get("schedulingGroup") or {}).get("podGroupName")
    if "gang" not in policy and group is None:
        return None
    return {"least": (policy.get("gang") or {}).get("minCount"), "group": group}


def scaled(job: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """What has to be said of a (whole) Job's gang together with this number of workers: it may not need more."""
    gang = gang_of(job)
    if gang is None or gang["least"] is None or gang["least"] <= workers:
        return {}
    return {"scheduling": {"schedulingPolicy": {"gang": {"minCount": workers}}}}


def lets_replace(gang: Mapping[str, Any] | None, job: Job) -> bool:
    """Whether a pod can come for one that has failed: not in a gang that somebody has made larger than ours.

    There the Job's size is raised, and with it what the gang needs, while the failed pod counts for nothing.
    """
    return gang is None or (gang["least"] is not None and gang["least"] <= fewest(job))


def waits(gang: Mapping[str, Any] | None, pod: Mapping[str, Any]) -> str | None:
    """What a (slim) pod waits for that the scheduler has not looked at, as its gang is not there; or None."""
    group = pod["spec"].get("group")
    placed = pod["spec"]["nodeName"] is not None or pod["status"]["conditions"]
    if gang is None or group is None or placed or pod["status"]["phase"] != "Pending":
        return None
    if gang["group"] is not None:
        return f"it waits for the pod group {group}, which its template names"
    least = gang["least"]
    return f"it waits for its gang, of which {'all' if least is None else least} pods have to be there"


def in_plain_words(workers: Sequence[WorkerStatus]) -> tuple[WorkerStatus, ...]:
    """Have all that wait for room say why: of a gang only those pods say so that the scheduler has tried to place."""
    reasons = [
        w.reason
        for w in workers
        if w.waiting is Waiting.CAPACITY and "nodes are available" in (w.reason or "")
    ]
    if not reasons:
        return tuple(workers)
    return tuple(
        replace(w, reason=reasons[0])
        if w.waiting is Waiting.CAPACITY and "minCount (" in (w.reason or "")
        else w
        for w in workers
    )
