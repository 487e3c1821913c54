"""Kubernetes' own gangs, which a Job requests in `spec.scheduling` (1.37, alpha).

Seen with 1.37.2: the scheduler starts no pod before `minCount` pods of a Job have room, and the rest when there is
room. Ended pods do not count: if fewer than `minCount` pods can still start, they wait forever, and nothing reports it.
The default of `minCount` is the Job's `parallelism`, and follows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_elastic.engines.kube.queues.gang import min_to_start, shrinks
from airflow_elastic.spec.errors import Problem
from airflow_elastic.spec.status import Waiting, WorkerStatus

if TYPE_CHECKING:
    from airflow_elastic.engines.api import Job
    from airflow_elastic.engines.kube.options import KubeOptions

_CONSTRAINTS = "scheduling.schedulingConstraints"

#: The feature gates without which an API server drops these fields silently.
_GATES = {
    "scheduling": "GenericWorkload and WorkloadWithJob",
    _CONSTRAINTS: "TopologyAwareWorkloadScheduling",
}


def check(engine: str, options: KubeOptions) -> list[Problem]:
    """The options that a gang of Kubernetes cannot have, or only such a gang can have."""
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
    """The gang of a Job, as part of its `spec`; empty if it has none."""
    if options.queueing != "native":
        return {}
    mode = options.disruption_mode or ("single" if shrinks(job) else "all")
    laid = {"schedulingPolicy": {"gang": {"minCount": min_to_start(job)}}, "disruptionMode": {mode: {}}}
    if options.topology is not None:
        laid["schedulingConstraints"] = {"topology": [{"key": options.topology}]}
    return {"scheduling": laid}


def is_gang(body: Mapping[str, Any]) -> bool:
    """Whether this object requests a gang of Kubernetes."""
    return "scheduling" in body.get("spec", {})


def dropped_gang(asked: Mapping[str, Any], made: Mapping[str, Any]) -> str | None:
    """The part of a requested gang that the API server has dropped, and what it needs for that; or None."""
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
    """What a cluster needs that is older than gangs and refuses a Job with these words; or None."""
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
    """The kept part of the gang of a (whole) Job, even if somebody else has requested it; None if it has none.

    `least`: its `minCount`, None if that follows the Job's parallelism; `group`: an existing group that the Job names.
    """
    spec = job["spec"]
    policy = (spec.get("scheduling") or {}).get("schedulingPolicy") or {}
    group = (spec.get("template", {}).get("spec", {}).get("schedulingGroup") or {}).get("podGroupName")
    if "gang" not in policy and group is None:
        return None
    return {"least": (policy.get("gang") or {}).get("minCount"), "group": group}


def scaled(job: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """The change to a (whole) Job's gang for this number of workers: it must not need more."""
    gang = gang_of(job)
    if gang is None or gang["least"] is None or gang["least"] <= workers:
        return {}
    return {"scheduling": {"schedulingPolicy": {"gang": {"minCount": workers}}}}


def allows_replacement(gang: Mapping[str, Any] | None, job: Job) -> bool:
    """Whether a pod can replace a failed one: not if somebody has made the gang larger than this run needs.

    A replacement raises the Job's size, and so the size that the gang needs, while the failed pod does not count.
    """
    return gang is None or (gang["least"] is not None and gang["least"] <= min_to_start(job))


def waits(gang: Mapping[str, Any] | None, pod: Mapping[str, Any]) -> str | None:
    """What a (slim) pod waits for if the scheduler ignores it because its gang is incomplete; or None."""
    group = pod["spec"].get("group")
    placed = pod["spec"]["nodeName"] is not None or pod["status"]["conditions"]
    if gang is None or group is None or placed or pod["status"]["phase"] != "Pending":
        return None
    if gang["group"] is not None:
        return f"it waits for the pod group {group}, which its template names"
    least = gang["least"]
    return f"it waits until {'all' if least is None else least} pods of its gang are there"


def in_plain_words(workers: Sequence[WorkerStatus]) -> tuple[WorkerStatus, ...]:
    """Let all workers that wait for room say why: in a gang only pods say so that the scheduler has tried to place."""
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
