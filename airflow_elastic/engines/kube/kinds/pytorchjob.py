"""Engine `pytorchjob`: a PyTorchJob of kubeflow.org/v1 for the training-operator (seen with 1.9.3).

It scales in place, and can wait while it is suspended. It cannot be a gang, unless the operator was set up for it
(`run_policy.schedulingPolicy`). Only the run may scale it.

Replicas have the restartPolicy Never: only this leaves decisions and evidence to the run.

- ExitCode deletes a pod that ended with 128 or more, and so the only evidence. It makes another one at once, forever.
It
  ends the job for any pod that ends with less, even for a pod that is surplus for a moment.
- OnFailure and Always start the container again in the same pod, forever. The second end hides the first.
- With Never an ended pod stays. The operator sets the job to `Failed` when a pod has ended, or is ending, and fewer
  pods run than the job should have. It then leaves the other pods alone (cleanPodPolicy None), but makes no more pods.
  Only a pod that vanishes without an observed end (deleted without grace) is replaced, once. The new agent sees that
  its worker has already run, and ends.

So the operator must not see a failure where there is none. After a step down the job is well if the remaining workers
run, so `scale` waits for these first. After a step up the job fails if a worker that was sent away is still ending. So
`scale` waits for its end, too. A failure can still come when a worker is sent away, in two cases:

- Another worker finds no room, or does not start for long.
- The API server is out of reach for longer than a save takes.

Then training goes on, and only the next growth needs a new attempt. So a job gets its `ttlSecondsAfterFinished` only
when the run is over: a job that failed for the operator may still be training.

Without a Master a job has succeeded when all workers have; with an elasticPolicy when any has; with a Master when the
Master has. In all cases the pods stay, and the pods are read. Nothing here reads the condition `Running`, which comes
before the pods, or `Restarting`. Nor does it read the `replicaStatuses`, which count running pods as ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from airflow_elastic.adapters.kube import Missing
from airflow_elastic.adapters.kube.hub import hub
from airflow_elastic.adapters.kube.resources import Resource
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.kind import Change, Object
from airflow_elastic.engines.kube.options import KubeOptions, options_of
from airflow_elastic.engines.kube.queues import volcano
from airflow_elastic.engines.kube.render.pod import (
    JOB_LABEL,
    marks,
    named,
    owner_labels,
    pod_template,
)
from airflow_elastic.engines.kube.render.tensorboard import without_sidecar
from airflow_elastic.spec.errors import EngineError, Problem
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.status import WorkerPhase, WorkerStatus

PYTORCHJOBS = Resource(
    "kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", needs="the training-operator (Kubeflow, v1)"
)

_INDEX = "training.kubeflow.org/replica-index"

#: On a PyTorchJob that others may scale: the number of workers that the run has asked for.
_TOLD = "airflow-elastic/workers"

#: On pods beside a Master: the offset from their index to the number of the worker, because the Master is worker 0.
_BEFORE = "airflow-elastic/workers-before"

_RUN_POLICY = ("schedulingPolicy", "managedBy", "suspend")
_NOT_OURS = {
    "cleanPodPolicy": "nothing: pods stay until the run has read how they ended; what stays then is `cleanup`'s to say",
    "backoffLimit": "nothing: the run counts its restarts itself (restart.backoff_limit)",
    "activeDeadlineSeconds": "nothing: the run keeps its own clock (active_deadline_seconds)",
    "ttlSecondsAfterFinished": "nothing: say it as engine_options.ttl_seconds",
}
_ELASTIC_POLICY = (
    *("minReplicas", "maxReplicas", "rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf"),
    *("standalone", "nProcPerNode", "maxRestarts", "metrics"),
)


@dataclass(frozen=True, slots=True)
class PyTorchJobOptions(KubeOptions):
    """Options that only a PyTorchJob has.

    Attributes:
        master: worker 0 is the Master: the job succeeds when it does. Needs at least 2 workers.
        elastic_policy: an `elasticPolicy` in Kubernetes' form, for other readers. `{}` has the fewest and most workers
            of the run. The workers do not need it: they have their own rendezvous. With `metrics` the operator makes a
            HorizontalPodAutoscaler, and the run follows each change of the number of workers.
        run_policy: `schedulingPolicy`, `managedBy` and `suspend` of the `runPolicy`, in Kubernetes' form.
    """

    master: bool = False
    elastic_policy: Mapping[str, Any] | None = None
    run_policy: Mapping[str, Any] = field(default_factory=dict)


class PyTorchJobKind:
    """kubeflow.org/v1 PyTorchJob."""

    name = "pytorchjob"
    options = PyTorchJobOptions
    resource = PYTORCHJOBS
    container = "pytorch"
    pod_label = JOB_LABEL
    longest_name = 53  # pods are named <job>-worker-<index>: 63 letters, for up to 100 workers
    scales_in_place = True

    def check(self, spec: RunSpec, options: KubeOptions) -> list[Problem]:
        """Policies may hold only what the run leaves to the operator; a Master is never alone."""
        mine = cast("PyTorchJobOptions", options)
        problems = []
        for key, value in mine.run_policy.items():
            if key not in _RUN_POLICY:
                allowed = _NOT_OURS.get(key, f"one of {', '.join(_RUN_POLICY)}")
                problems.append(Problem(f"engine_options.run_policy.{key}", value, allowed))
        for key, value in (mine.elastic_policy or {}).items():
            if key not in _ELASTIC_POLICY:
                allowed = f"one of {', '.join(_ELASTIC_POLICY)}"
                problems.append(Problem(f"engine_options.elastic_policy.{key}", value, allowed))
        problems += volcano.check_policy(mine.run_policy.get("schedulingPolicy", {}), options)
        if _follows(mine):
            problems += _not_followed(spec, options)
        if mine.master and spec.workers.at_least < 2:
            allowed = "at least 2 with engine_options.master: the Master is worker 0, and others beside it must stay"
            problems.append(Problem("workers.min", spec.workers.at_least, allowed))
        return problems

    def render(self, job: Job, options: KubeOptions) -> list[tuple[Resource, dict[str, Any]]]:
        """The PyTorchJob; the operator makes a headless Service for each pod by itself."""
        mine = cast("PyTorchJobOptions", options)
        before = 1 if mine.master else 0
        replicas = {"Worker": self._replicas(job, options, job.workers - before, before)}
        if mine.master:
            replicas = {"Master": self._replicas(job, options, 1, 0), **replicas}
        spec: dict[str, Any] = {
            "nprocPerNode": str(job.spec.workers.procs),
            "runPolicy": {**mine.run_policy, **_scheduling(job, mine), "cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": replicas,
        }
        if mine.elastic_policy is not None:
            workers = job.spec.workers
            bounds = {"minReplicas": workers.at_least - before, "maxReplicas": workers.at_most - before}
            spec["elasticPolicy"] = {**bounds, **mine.elastic_policy}
        metadata = {**named(job, options), "labels": owner_labels(job, options)}
        if _follows(mine):
            metadata["annotations"] = {**metadata["annotations"], _TOLD: str(job.workers)}
        head = {"apiVersion": PYTORCHJOBS.api_version, "kind": PYTORCHJOBS.kind}
        return [(PYTORCHJOBS, {**head, "metadata": metadata, "spec": spec})]

    def _replicas(self, job: Job, options: KubeOptions, replicas: int, before: int) -> dict[str, Any]:
        index = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{_INDEX}']"}}}
        template = pod_template(job, options, container=self.container, index=index)
        del template["spec"]["restartPolicy"]  # the operator sets it, and warns if there is one
        env = {"AIRFLOW_ELASTIC_FOLLOWS": "1"} if _follows(cast("PyTorchJobOptions", options)) else {}
        if before:
            template["metadata"]["labels"][_BEFORE] = str(before)
            env["AIRFLOW_ELASTIC_WORKERS_BEFORE"] = str(before)
            without_sidecar(template)  # the operator counts these from 0 again
        for container in template["spec"]["containers"]:
            if container["name"] == self.container:
                container["env"] += [{"name": name, "value": value} for name, value in env.items()]
        return {"replicas": replicas, "restartPolicy": "Never", "template": template}

    def workers(self, owner: Object) -> int:
        """The sum over all kinds of replicas. If somebody else has set 0, it is one worker, which is lost."""
        return max(1, sum(int(one["replicas"]) for one in owner["spec"]["pytorchReplicaSpecs"].values()))

    def index(self, pod: Object) -> int | None:
        """The operator's index of the pod, counted after the Master."""
        found = pod["metadata"].get("labels", {})
        return int(found[_INDEX]) + int(found.get(_BEFORE, 0)) if _INDEX in found else None

    def scaled(self, owner: Object, workers: int) -> Change:
        """The number of workers; never 0, because a PyTorchJob with 0 has succeeded at once."""
        others = len(owner["spec"]["pytorchReplicaSpecs"].keys() - {"Worker"})
        if workers - others < 1:
            raise EngineError(f"a PyTorchJob must have a worker{' beside its Master' if others else ''}")
        body: dict[str, Any] = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": workers - others}}}}
        if _TOLD in (owner["metadata"].get("annotations") or {}):
            body["metadata"] = {"annotations": {_TOLD: str(workers)}}
        return Change(body)

    def held(self, owner: Object) -> str | None:
        """Suspended: by a queue, or by a person."""
        return "the PyTorchJob is suspended" if owner["spec"]["suspend"] else None

    def gone(self, owner: Object, index: int) -> WorkerStatus | None:
        """A job that has ended makes no more pods: missing ones will not come."""
        name, spec, ended = f"node-{index}", owner["spec"], owner["status"]["ended"]
        replicas = spec["pytorchReplicaSpecs"]
        if not replicas["Worker"]["replicas"]:
            reason = "somebody else has scaled the PyTorchJob to 0, with which it has ended"
            return WorkerStatus(name, WorkerPhase.LOST, reason=reason)
        if ended is None:
            return None
        told = not spec["elastic"] and ("Master" not in replicas or index == 0)
        if ended["type"] == "Succeeded" and told:
            return WorkerStatus(name, WorkerPhase.SUCCEEDED)
        reason = f"the PyTorchJob makes no more pods: {ended['message']}"
        return WorkerStatus(name, WorkerPhase.LOST, reason=reason)

    def slim(self, owner: dict[str, Any]) -> dict[str, Any]:
        """Numbers, suspension, and the terminal condition, which is not always the last one."""
        spec = owner["spec"]
        ended = [
            {"type": c["type"], "message": c.get("message") or c.get("reason")}
            for c in owner.get("status", {}).get("conditions") or ()
            if c["type"] in ("Succeeded", "Failed") and c["status"] == "True"
        ]
        metadata = {key: owner["metadata"][key] for key in ("name", "uid")}
        told = (owner["metadata"].get("annotations") or {}).get(_TOLD)
        if told is not None:
            metadata |= {"told": int(told), "generation": owner["metadata"]["generation"]}
        return {
            "metadata": metadata,
            "spec": {
                "pytorchReplicaSpecs": {
                    kind: {"replicas": one.get("replicas", 1)}
                    for kind, one in spec["pytorchReplicaSpecs"].items()
                },
                "elastic": "elasticPolicy" in spec,
                "suspend": spec.get("runPolicy", {}).get("suspend", False),
            },
            "status": {"ended": ended[0] if ended else None},
        }


def _scheduling(job: Job, options: PyTorchJobOptions) -> dict[str, Any]:
    """The operator's settings for a gang: without them the operator would require all workers."""
    told = {**options.run_policy.get("schedulingPolicy", {}), **volcano.policy(job, options)}
    return {"schedulingPolicy": told} if told else {}


def _follows(options: PyTorchJobOptions) -> bool:
    """Whether others, such as an autoscaler, may change the number of workers."""
    return "metrics" in (options.elastic_policy or {})


def _not_followed(spec: RunSpec, options: KubeOptions) -> list[Problem]:
    """The settings that do not work together with an autoscaler."""
    path, problems = "engine_options.elastic_policy.metrics", []
    if spec.workers.node_unit > 1:
        allowed = "unset with workers.node_unit above 1: an autoscaler knows no unit"
        problems.append(Problem(path, spec.workers.node_unit, allowed))
    if options.by_kueue:
        allowed = "unset with a queue of Kueue, which ends all pods of a job whose size changes"
        problems.append(Problem(path, options.queue, allowed))
    if spec.scaling_policy is not None:
        allowed = "unset with scaling.policy: either an autoscaler of the cluster decides, or the run; leave one out"
        problems.append(Problem(path, "scaling.policy", allowed))
    return problems


class PyTorchJobEngine(KubeEngine):
    """Workers as the pods of a PyTorchJob."""

    kind = PyTorchJobKind()
    awaits_all = True

    async def scale(self, job: Job, workers: int) -> None:
        """As for every kind; but an impossible number for a PyTorchJob is refused before anything is written."""
        options = options_of(job.spec, self.kind.options)
        async with hub(self._reach(options)) as shared:
            owner = await shared.client.get(self.kind.resource, options.namespace, job.name)
            self.kind.scaled(owner, workers)
        await super().scale(job, workers)

    async def close(self, job: Job) -> None:
        """Let the cluster remove the rest of the job after `ttl_seconds`."""
        if await asyncio.to_thread(lambda: self._files(job).record) is None:
            return  # without a record no object was made, whether or not there is a cluster
        options = options_of(job.spec, self.kind.options)
        async with hub(self._reach(options)) as shared:
            client, place = shared.client, (self.kind.resource, options.namespace, job.name)
            with contextlib.suppress(Missing):
                owner = await client.get(*place)
                theirs = owner["metadata"].get("annotations") or {}
                if marks(job, options).items() <= theirs.items():
                    policy = {"ttlSecondsAfterFinished": options.ttl_seconds}
                    await client.patch(*place, {"spec": {"runPolicy": policy}})
