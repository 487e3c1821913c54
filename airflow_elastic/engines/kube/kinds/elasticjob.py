"""Engine `elasticjob`: an ElasticJob of DLRover 0.6, whose operator starts a job master, which makes the pods.

The master would restart workers by its own rules. `restartCount` 0 turns that off. It still replaces a worker that was
deleted; the replacement sees that the worker has already run, and ends. Pods are found by DLRover's own labels, which
the master's pod has, too. A job is not scaled in place: the master reads its number once, and nothing starts its
watcher of ScalePlans. A scale step is a new attempt. No queue knows ElasticJobs: the workers wait as a group of plain
pods, which Kueue holds by a gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from airflow_elastic.adapters.kube.hub import OWN_NAME, Hub, Query
from airflow_elastic.adapters.kube.resources import PODS, Resource
from airflow_elastic.engines.api import MAX_JOB_NAME, Finding, Job
from airflow_elastic.engines.kube.checks import doctor
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.kind import Change, Object
from airflow_elastic.engines.kube.kinds.elasticjob_crd import ELASTICJOBS, findings, fitted
from airflow_elastic.engines.kube.kinds.elasticjob_options import MASTER_OPTIONS, ElasticJobOptions, Replicas
from airflow_elastic.engines.kube.options import KubeOptions
from airflow_elastic.engines.kube.queues import kueue
from airflow_elastic.engines.kube.render.engine_values import metadata_with_engine_values
from airflow_elastic.engines.kube.render.pod import marked, named, pod_template
from airflow_elastic.engines.kube.render.reserved_fields import refused_beside
from airflow_elastic.engines.kube.render.strategic_merge import overlay
from airflow_elastic.engines.kube.watch.pod_status import read_pod
from airflow_elastic.spec.errors import Problem
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.status import WorkerPhase, WorkerStatus

NAME_LABEL = "elasticjob.dlrover/name"
_TYPE_LABEL = "elasticjob.dlrover/replica-type"
_RANK_LABEL = "elasticjob.dlrover/rank-index"
_MASTER = "dlrover-master"

#: The port of the operator's Service.
MASTER_PORT = 50001


class ElasticJobKind:
    """elastic.iml.github.io/v1alpha1 ElasticJob."""

    name = "elasticjob"
    options: type[KubeOptions] = ElasticJobOptions
    resource = ELASTICJOBS
    container = "main"
    pod_label = NAME_LABEL
    longest_name = 37  # the master's Service is elasticjob-<job>-dlrover-master: 63 letters
    scales_in_place = False

    def check(self, spec: RunSpec, options: KubeOptions) -> list[Problem]:
        """DLRover writes some fields of its pods itself; and a group of Kueue contains only the workers."""
        mine = cast("ElasticJobOptions", options)
        alone = mine.queue is None or not mine.replicas
        fixed = mine.queue is None or not mine.auto_scale
        whose = {
            "replicas": (
                None if alone else sorted(mine.replicas),
                "none beside queue: only workers are counted by Kueue",
            ),
            "auto_scale": (None if fixed else True, "unset beside queue: Kueue counts the workers once"),
            "queueing": (
                None if options.queueing == "kueue" else options.queueing,
                "unset with elasticjob: DLRover's master replaces what would put its pods into a gang",
            ),
            "priority_class": (options.priority_class, "priority, with elasticjob: DLRover sets the class"),
            "ttl_seconds": (
                None if options.ttl_seconds == KubeOptions(image="any").ttl_seconds else options.ttl_seconds,
                "unset: an ElasticJob has no time to live; with cleanup All it goes when the run ends",
            ),
        }
        problems = [
            Problem(f"engine_options.{name}", given, allowed)
            for name, (given, allowed) in whose.items()
            if given is not None
        ]
        if spec.scaling_policy is not None:
            allowed = (
                "unset with scaling.policy: either DLRover decides on the workers, or the run; leave one out"
            )
            problems += [
                Problem(f"engine_options.{name}", value, allowed)
                for name, value in (("optimize_mode", mine.optimize_mode), ("auto_scale", mine.auto_scale))
                if value not in ("manual", None, False)
            ]
        problems += [
            Problem(f"engine_options.annotations.{name}", value, "nothing: say it as master.options")
            for name, value in mine.annotations.items()
            if name in MASTER_OPTIONS
        ]
        beside = {"master": mine.master.pod_template}
        beside |= {f"replicas.{name}": one.pod_template for name, one in mine.replicas.items()}
        for name, template in beside.items():
            problems += refused_beside(template, f"engine_options.{name}.pod_template")
        return problems

    def render(self, job: Job, options: KubeOptions) -> list[tuple[Resource, dict[str, Any]]]:
        """The ElasticJob; operator and master make the rest."""
        assert isinstance(options, ElasticJobOptions)  # noqa: S101 - the engine has read them so
        assert len(job.name) <= min(self.longest_name, MAX_JOB_NAME), job.name  # noqa: S101 - Job.name promises it
        metadata = named(job, options)
        metadata["annotations"] |= _said_to_master(options)
        spec = {
            "distributionStrategy": options.distribution_strategy,
            "optimizeMode": options.optimize_mode,
            "brainService": options.brain_service,
            "resourceLimits": dict(options.resource_limits) or None,
            "envs": dict(options.envs) or None,
            "suspend": options.suspend or None,
            "enableDynamicSharding": options.enable_dynamic_sharding,
            "enableElasticScheduling": options.enable_elastic_scheduling,
            "replicaSpecs": {
                _MASTER: _master(job, options),
                **{name: _others(job, options, one) for name, one in options.replicas.items()},
                "worker": self._workers(job, options),  # last, because the pod template is looked for there
            },
        }
        body = {"apiVersion": ELASTICJOBS.api_version, "kind": ELASTICJOBS.kind, "metadata": metadata}
        return [(ELASTICJOBS, {**body, "spec": _said(spec)})]

    def _workers(self, job: Job, options: ElasticJobOptions) -> dict[str, Any]:
        index = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{_RANK_LABEL}']"}}}
        template = pod_template(job, options, container=self.container, index=index)
        if options.by_kueue:
            template["metadata"] = overlay(template["metadata"], kueue.group(job, options))
        return _said(
            {
                "replicas": job.workers,
                "restartPolicy": "Never",
                "restartCount": 0,
                "autoScale": options.auto_scale,
                "restartTimeout": options.restart_timeout,
                "priority": options.priority,
                "template": template,
            }
        )

    def workers(self, owner: Object) -> int:
        """The number that we wrote: DLRover never changes it."""
        return int(owner["spec"]["workers"])

    def index(self, pod: Object) -> int | None:
        """The rank index of a worker; a replacement has the index of its predecessor."""
        found = pod["metadata"].get("labels", {})
        return int(found[_RANK_LABEL]) if found.get(_TYPE_LABEL) == "worker" else None

    def scaled(self, owner: Object, workers: int) -> Change:
        """Never called: DLRover's master reads the number once."""
        return Change({"spec": {"replicaSpecs": {"worker": {"replicas": workers}}}})

    def held(self, owner: Object) -> str | None:
        """Suspended, by a person."""
        suspended = owner["spec"]["suspend"] or owner["status"]["phase"] == "Suspended"
        return "the ElasticJob is suspended" if suspended else None

    def gone(self, owner: Object, index: int) -> WorkerStatus | None:
        """By the master's phase: after its end there are no new pods."""
        name, status = f"node-{index}", owner["status"]
        if status["phase"] == "Succeeded":
            return WorkerStatus(name, WorkerPhase.SUCCEEDED)
        if status["phase"] == "Failed":
            why = f"the ElasticJob has failed: {status['failed'] or 'it does not say why'}"
            return WorkerStatus(name, WorkerPhase.LOST, reason=why)
        return None

    def slim(self, owner: dict[str, Any]) -> dict[str, Any]:
        """Number of workers, suspension, phase, and the condition of a failure."""
        spec, status = owner["spec"], owner.get("status") or {}
        conditions = (status.get("status") or {}).get("conditions") or ()
        failed = [c for c in conditions if c["type"] == "Failed" and c["status"] == "True"]
        return {
            "metadata": {key: owner["metadata"][key] for key in ("name", "uid")},
            "spec": {
                "workers": spec["replicaSpecs"]["worker"].get("replicas", 0),
                "suspend": spec.get("suspend", False),
            },
            "status": {
                "phase": status.get("phase") or None,
                "failed": (failed[-1].get("message") or failed[-1].get("reason")) if failed else None,
            },
        }


def _master(job: Job, options: ElasticJobOptions) -> dict[str, Any]:
    """The pod that the operator makes first, in its own form, but with our image, resources and pull policy.

    Without `restartPolicy` in a template the operator makes only this pod, silently. With `replicas` the master would
    try to make pods of its own kind.
    """
    master = options.master
    words = [
        *(master.python or options.python, "-m", "dlrover.python.master.main"),
        *("--platform", "pyk8s", "--namespace", options.namespace),
        *("--job_name", job.name, "--port", str(MASTER_PORT)),
        *(word for name, value in _said_to_master(options).items() for word in (f"--{name}", value)),
    ]
    container = {
        "command": words,
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "image": master.image or options.image,
        "resources": _resources(master.resources),
    }
    account = master.service_account or options.service_account
    template = _template(job, options, container, master.pod_template, service_account=account)
    return {"restartPolicy": "Never", "restartCount": 0, "template": template}


def _said_to_master(options: ElasticJobOptions) -> dict[str, str]:
    """Options of the master's command. Pods that wait for long do not end the job: the run has its own time limits."""
    return {"pending_fail_strategy": "0", **options.master.options}


def _others(job: Job, options: ElasticJobOptions, one: Replicas) -> dict[str, Any]:
    container = {
        "command": list(one.command),
        "env": [{"name": name, "value": value} for name, value in one.env.items()],
        "image": one.image or options.image,
        "resources": _resources(one.resources),
        "volumeMounts": None,
    }
    return _said(
        {
            "replicas": one.replicas,
            "restartPolicy": "Never",
            "restartCount": one.restart_count,
            "autoScale": one.auto_scale,
            "restartTimeout": one.restart_timeout,
            "priority": one.priority,
            "template": _template(
                job, options, container, one.pod_template, service_account=options.service_account
            ),
        }
    )


def _template(
    job: Job,
    options: ElasticJobOptions,
    container: dict[str, Any],
    over: Mapping[str, Any],
    *,
    service_account: str | None,
) -> dict[str, Any]:
    """A pod beside the workers, on the same nodes, with the volumes that it may mount."""
    spec = {
        "restartPolicy": "Never",
        "containers": [_said({"name": "main", "imagePullPolicy": options.image_pull_policy, **container})],
        "nodeSelector": dict(options.node_selector) or None,
        "tolerations": [dict(one) for one in options.tolerations] or None,
        "serviceAccountName": service_account,
        "schedulerName": options.scheduler,
        "imagePullSecrets": [{"name": name} for name in options.image_pull_secrets] or None,
    }
    template = {
        "metadata": marked(job, options),
        "spec": _said(spec),
    }
    laid: dict[str, Any] = overlay(template, over)
    metadata = metadata_with_engine_values(laid.get("metadata") or {}, template["metadata"])
    return {**laid, "metadata": metadata, "spec": {**laid["spec"], "restartPolicy": "Never"}}


def _resources(amounts: Mapping[str, str]) -> dict[str, Any] | None:
    return {"requests": dict(amounts), "limits": dict(amounts)} if amounts else None


def _said(plain: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in plain.items() if value is not None}


class ElasticJobEngine(KubeEngine):
    """Workers as pods of DLRover."""

    kind = ElasticJobKind()

    def _begun(self, job: Job) -> dict[int, str]:
        """The workers' own records: a pod that is gone before anybody looks leaves nothing else."""
        return self._files(job).begun()

    def doctor(self, namespace: str | None = None) -> list[Finding]:
        """The findings of every kind; and the fields that the installed kind lacks."""
        return doctor(self.kind, self._access, namespace, look=findings)

    async def _objects(
        self, shared: Hub, job: Job, options: KubeOptions
    ) -> list[tuple[Resource, dict[str, Any]]]:
        made = await super()._objects(shared, job, options)
        return await fitted(shared.client, made, options)

    def _before_workers(self, pods: Sequence[Object]) -> str | None:
        """Without its master an ElasticJob has no pods, and says nothing: the image or a free node may be missing."""
        for pod in pods:
            if pod["metadata"]["labels"].get(_TYPE_LABEL) == _MASTER:
                read = read_pod(dict(pod), self.kind.container, _MASTER)
                if read.phase is WorkerPhase.PENDING and read.reason:
                    return f"the job master waits: {read.reason}"
        return None

    def _workloads(self, options: KubeOptions) -> Query:
        return replace(super()._workloads(options), key=OWN_NAME)

    async def _end(self, shared: Hub, job: Job, options: KubeOptions, owner: dict[str, Any] | None) -> None:
        await super()._end(shared, job, options, owner)
        if options.by_kueue and owner is not None:  # otherwise the Workload may belong to somebody else
            await self.let_go(shared, options.namespace, job.name)

    async def _delete_pods(self, shared: Hub, job: Job, options: KubeOptions, seconds: int) -> None:
        """The job master has nothing to save and ignores SIGTERM, so it would use its whole grace period."""
        await super()._delete_pods(shared, job, options, seconds)
        master = f"{NAME_LABEL}={job.name},{_TYPE_LABEL}={_MASTER}"
        await shared.client.delete_all(PODS, options.namespace, labels=master, grace_seconds=0)

    async def _nothing_left(self, shared: Hub, job: Job, options: KubeOptions) -> None:
        await super()._nothing_left(shared, job, options)
        if options.by_kueue:  # the Workload may have been made only now
            await self.let_go(shared, options.namespace, job.name)

    async def let_go(self, shared: Hub, namespace: str, name: str) -> None:
        """Delete the group's Workload, with which Kueue would keep ended pods until others replace them."""
        await shared.client.delete(kueue.WORKLOADS, namespace, name)
