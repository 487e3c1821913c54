"""Engine `trainjob`: a TrainJob of the Kubeflow Trainer 2, which makes a JobSet, which makes an Indexed Job.

By default each attempt has its own TrainingRuntime. So the whole pod follows our options, and only the run restarts
anything. There is no failure policy, and `backoffLimitPerIndex` is 0 in the child Job. The option `runtime` names an
existing one; then a pod has only what `spec.trainer` and `runtimePatches` can set. It scales in place by its child Job,
which neither Trainer nor JobSet change back (seen with Trainer 2.3 on JobSet 0.12).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from airflow_elastic.adapters.kube import Invalid, Resource
from airflow_elastic.adapters.kube.hub import Hub
from airflow_elastic.adapters.kube.resources import EVENTS, JOBS
from airflow_elastic.engines.api import MAX_JOB_NAME, Finding, Job
from airflow_elastic.engines.kube.checks import doctor
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.kind import Change, Child, Object
from airflow_elastic.engines.kube.kinds.job import INDEX_ANNOTATION, JobKind
from airflow_elastic.engines.kube.kinds.trainjob_runtime_patch import beyond_patches, patched
from airflow_elastic.engines.kube.kinds.trainjob_suspend import JobAddress, end_queued, suspend
from airflow_elastic.engines.kube.options import KubeOptions
from airflow_elastic.engines.kube.queues import kueue
from airflow_elastic.engines.kube.render.pod import JOB_LABEL, marked, named, owner_labels, pod_template
from airflow_elastic.spec.errors import Problem
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.status import WorkerPhase, WorkerStatus
from airflow_elastic.spec.validation import Checks, choice

_GROUP, _VERSION, _NEEDS = "trainer.kubeflow.org", "v1alpha1", "the Kubeflow Trainer"
TRAINJOBS = Resource(_GROUP, _VERSION, "trainjobs", "TrainJob", needs=_NEEDS)
RUNTIMES = Resource(_GROUP, _VERSION, "trainingruntimes", "TrainingRuntime", needs=_NEEDS)

#: The replicated job of a runtime that trains; Trainer requires the same name for its container.
_NODE = "node"

#: Trainer and Kueue cache the runtimes, so they may not see a new one for a moment.
_KNOWN_SECONDS, _LOOK_SECONDS = 5.0, 0.02

_INDEX = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX_ANNOTATION}']"}}}


@dataclass(frozen=True, slots=True)
class Runtime:
    """An existing runtime.

    Attributes:
        name: its name.
        kind: ClusterTrainingRuntime, or TrainingRuntime for one of the namespace.
    """

    name: str
    kind: str = "ClusterTrainingRuntime"

    def __post_init__(self) -> None:
        with Checks() as check:
            check("kind", self.kind, choice(("ClusterTrainingRuntime", "TrainingRuntime")))


@dataclass(frozen=True, slots=True)
class TrainJobOptions(KubeOptions):
    """Options for workers as pods of a TrainJob.

    Attributes:
        runtime: an existing one, e.g. `{name: torch-distributed}`. Default: each attempt makes its own.
    """

    runtime: Runtime | None = None


class TrainJobKind:
    """trainer.kubeflow.org/v1alpha1 TrainJob."""

    name = "trainjob"
    options: type[KubeOptions] = TrainJobOptions
    resource = TRAINJOBS
    container = _NODE
    pod_label = JOB_LABEL
    longest_name = (
        47  # pods are named <job>-node-0-<index>-<5 letters>; with too long a name they hang silently
    )
    scales_in_place = True

    def check(self, spec: RunSpec, options: KubeOptions) -> list[Problem]:
        """There is no time to live; and an existing runtime limits the pod to what runtimePatches can carry."""
        runtime, ttl = _runtime(options), options.ttl_seconds
        problems = []
        if ttl != KubeOptions(image="any").ttl_seconds:
            allowed = "unset: a TrainJob has no time to live; with cleanup All it goes when the run ends"
            problems.append(Problem("engine_options.ttl_seconds", ttl, allowed))
        if runtime is None:
            return problems
        if options.by_kueue:
            allowed = (
                f"unset with the runtime {runtime.name}: Kueue 0.16 removes its patches; use no `runtime`"
            )
            problems.append(Problem("engine_options.queue", options.queue, allowed))
        job = Job("s3://any/run", spec, 1, spec.workers.count)
        return problems + beyond_patches(self._pod(job, options), runtime.name)

    def render(self, job: Job, options: KubeOptions) -> list[tuple[Resource, dict[str, Any]]]:
        """The TrainJob, after its runtime if the attempt has its own."""
        assert len(job.name) <= min(self.longest_name, MAX_JOB_NAME), job.name  # noqa: S101 - Job.name promises it
        template = self._pod(job, options)
        existing = _runtime(options)
        if existing is not None:
            ref = {"kind": existing.kind, "name": existing.name}
            told = patched(template, marked(job, options), _NODE)
            return [(TRAINJOBS, self._train_job(job, options, ref, told))]
        ref = {"kind": RUNTIMES.kind, "name": job.name}
        runtime = {
            "apiVersion": RUNTIMES.api_version,
            "kind": RUNTIMES.kind,
            "metadata": named(job, options),
            "spec": {
                "mlPolicy": {"numNodes": job.workers},
                "template": {
                    "metadata": marked(job, options),
                    "spec": {
                        # Names must exist before a worker is ready, because it becomes ready by its rendezvous.
                        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                        "replicatedJobs": [{"name": _NODE, "template": _child(job, options, template)}],
                    },
                },
            },
        }
        return [(RUNTIMES, runtime), (TRAINJOBS, self._train_job(job, options, ref, {}))]

    def workers(self, owner: Object) -> int:
        """The number in the child Job; without one, the number that the job began with."""
        child = owner.get("child")
        return int(owner["spec"]["workers"]) if child is None else _CHILD.workers(child)

    def index(self, pod: Object) -> int | None:
        """The pod's completion index."""
        return _CHILD.index(pod)

    def scaled(self, owner: Object, workers: int) -> Change:
        """Never called: the child Job is scaled."""
        return _CHILD.scaled(owner, workers)

    def held(self, owner: Object) -> str | None:
        """Suspended: by a queue, or by a person."""
        if owner["spec"]["suspend"]:
            return "the TrainJob is suspended"
        child = owner.get("child")
        return None if child is None else _CHILD.held(child)

    def gone(self, owner: Object, index: int) -> WorkerStatus | None:
        """By the child Job; without one, or if it says nothing, by the TrainJob's own end."""
        child, status = owner.get("child"), owner["status"]
        told = None if child is None else _CHILD.gone(child, index)
        if told is None and status["complete"]:
            return WorkerStatus(f"node-{index}", WorkerPhase.SUCCEEDED)
        if told is None and status["failed"] is not None:
            reason = f"the TrainJob has failed: {status['failed']}"
            return WorkerStatus(f"node-{index}", WorkerPhase.LOST, reason=reason)
        return told

    def slim(self, owner: dict[str, Any]) -> dict[str, Any]:
        """The number at the beginning, suspension, the terminal conditions; and whether Trainer has seen the
        suspension.

        A failed TrainJob can still get new pods: its JobSet is made again like any other.
        """
        spec, conditions = owner["spec"], _conditions(owner)
        suspend, failed = spec.get("suspend", False), conditions.get("Failed")
        return {
            "metadata": {key: owner["metadata"][key] for key in ("name", "uid")},
            "spec": {
                "workers": (spec.get("trainer") or {}).get("numNodes", 1),
                "suspend": suspend,
            },
            "status": {
                "complete": "Complete" in conditions,
                "quiet": "Complete" in conditions or (suspend and "Suspended" in conditions),
                "failed": None if failed is None else failed.get("message") or failed.get("reason"),
            },
        }

    def _pod(self, job: Job, options: KubeOptions) -> dict[str, Any]:
        return pod_template(job, options, container=self.container, index=_INDEX)

    def _train_job(
        self, job: Job, options: KubeOptions, ref: dict[str, str], told: dict[str, Any]
    ) -> dict[str, Any]:
        trainer = {**told.get("trainer", {}), "numNodes": job.workers}
        spec = {"runtimeRef": {"apiGroup": _GROUP, **ref}, **told, "trainer": trainer}
        return {
            "apiVersion": TRAINJOBS.api_version,
            "kind": TRAINJOBS.kind,
            "metadata": {**named(job, options), "labels": owner_labels(job, options)},
            "spec": spec,
        }


_CHILD = JobKind()


def _runtime(options: KubeOptions) -> Runtime | None:
    return options.runtime if isinstance(options, TrainJobOptions) else None


def misses_runtime(refusal: str, name: str) -> bool:
    """Whether a TrainJob is refused because Trainer's webhook, or that of Kueue, does not know this runtime."""
    return "must be created before" in refusal or f"runtime '{name}' not found" in refusal


def _child(job: Job, options: KubeOptions, template: dict[str, Any]) -> dict[str, Any]:
    """The child Job's template. By its label Trainer finds the job of a runtime that trains."""
    metadata = marked(job, options)
    metadata["labels"] = {**metadata["labels"], "trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    spec = {"completionMode": "Indexed", "backoffLimitPerIndex": 0, "template": template}
    return {"metadata": metadata, "spec": spec}


def _conditions(owner: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The conditions that are true, by type."""
    found = owner.get("status", {}).get("conditions") or ()
    return {one["type"]: one for one in found if one["status"] == "True"}


class TrainJobEngine(KubeEngine):
    """Workers as the pods of a TrainJob."""

    kind = TrainJobKind()
    child = Child(_CHILD, f"-{_NODE}-0")

    def doctor(self, namespace: str | None = None) -> list[Finding]:
        """Whether the cluster can be reached, knows the kind, and grants the rights."""
        further = [(verb, RUNTIMES) for verb in ("create", "get", "patch", "delete")]
        further += [(verb, JOBS) for verb in ("get", "list", "watch", "patch")]
        return doctor(self.kind, self._access, namespace, [*further, ("list", EVENTS)])

    async def _create(self, shared: Hub, job: Job, options: KubeOptions) -> None:
        deadline, pause = asyncio.get_running_loop().time() + _KNOWN_SECONDS, _LOOK_SECONDS
        while True:
            try:
                return await super()._create(shared, job, options)
            except Invalid as error:
                late = asyncio.get_running_loop().time() > deadline
                if _runtime(options) is not None or late or not misses_runtime(str(error), job.name):
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LOOK_SECONDS * 10)

    async def _end_all(
        self,
        shared: Hub,
        job: Job,
        options: KubeOptions,
        owner: dict[str, Any] | None,
        pods: list[dict[str, Any]],
        seconds: int,
    ) -> None:
        """Suspended first, because Trainer hears late of a plain deletion, and makes new pods meanwhile.

        Pods whose output must be kept stay, except in a queue, where the TrainJob is deleted with the suspension.
        """
        keeping = self._keep_logs(shared, job, options, pods)
        if owner is None:
            await keeping
        else:
            queried, _, child, *_others = self._queries(options)
            place = JobAddress(
                shared, job.name, self.child.name(job), owner["metadata"]["uid"], queried, child
            )
            if kueue.is_queued(owner):
                await keeping
                await end_queued(place, self._workloads(options))
            else:
                await asyncio.gather(keeping, suspend(place))
        await asyncio.gather(
            self._end(shared, job, options, owner), self._delete_pods(shared, job, options, seconds)
        )
