"""Engine `pytorchtrainingjob`: a PyTorchTrainingJob of TensorStack (`batch.tensorstack.dev/v1beta1`).

Its operator is closed, and its API is published in two forms: the reference of February 2024 (`elastic`, `enabled`)
and the newer guide (`minNodes`, `enable`). The cluster's own schema shows which form it accepts. Only a job in the
reference's form scales in place, and only in torchrun mode. There the operator puts its own torchrun before our agent.
That torchrun is alone in each pod, and starts only the agent. The workers use the run's own rendezvous, and only the
run restarts them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from airflow_elastic.adapters.kube.hub import Hub, hub
from airflow_elastic.adapters.kube.resources import Resource
from airflow_elastic.core.event_sentences import BOARD_PORT
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.kind import Change, Object
from airflow_elastic.engines.kube.options import KubeOptions, TensorBoard, options_of
from airflow_elastic.engines.kube.render.pod import JOB_LABEL, named, pod_template
from airflow_elastic.engines.kube.render.tensorboard import fileset
from airflow_elastic.spec.errors import EngineError, Problem
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.status import WorkerPhase, WorkerStatus
from airflow_elastic.spec.validation import Checks, choice

PYTORCHTRAININGJOBS = Resource(
    "batch.tensorstack.dev", "v1beta1", "pytorchtrainingjobs", "PyTorchTrainingJob", needs="TensorStack"
)

REFERENCE, GUIDE = "reference", "guide"

#: The pod's own torchrun starts our agent, once, and knows of no other pod.
_ALONE = ("--standalone", "--nnodes=1")


@dataclass(frozen=True, slots=True)
class TensorStackBoard(TensorBoard):
    """A TensorBoard beside the job, of TensorStack itself.

    Attributes:
        log_filesets: folders of logs, e.g. `t9k://pvc/logs/events`. Default: the run's event files, if the run has
            `tensorboard: true` and a volume with a `claim` holds it.
    """

    is_sidecar = False

    resources: Mapping[str, str] = field(default_factory=dict)
    log_filesets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        TensorBoard.__post_init__(self)
        with Checks() as check:
            check.that(self.port == BOARD_PORT, "port", self.port, "unset: TensorStack chooses it")


@dataclass(frozen=True, slots=True)
class Debug:
    """Start the pods without the training, to look into them. The run's own time limits still hold.

    Attributes:
        command: the command instead. Default: the operator's own, `sleep inf`.
        skip_init_container: leave out init containers.
    """

    command: tuple[str, ...] = ()
    skip_init_container: bool = False


@dataclass(frozen=True, slots=True)
class TensorStackOptions(KubeOptions):
    """Options for workers as pods of a PyTorchTrainingJob. `queue` names a queue of T9k's scheduler.

    Attributes:
        form: reference or guide. Default: what the cluster's own schema says; without a cluster, reference.
        queue_rank: priority in the queue, 0 to 100.
        torchrun: start workers through the operator's torchrun. Default: where the run may scale.
        rdzv_backend: of that torchrun: c10d, etcd or etcd-v2.
        torchrun_options: further options of that torchrun.
        scaling_weight: of the workers.
        tensorboard: a TensorBoard beside the job.
        debug: start the pods without the training.
        pause: create the job paused.
    """

    form: str | None = None
    queue_rank: int | None = None
    torchrun: bool | None = None
    rdzv_backend: str | None = None
    torchrun_options: tuple[str, ...] = ()
    scaling_weight: int | None = None
    tensorboard: TensorStackBoard | None = None
    debug: Debug | None = None
    pause: bool = False

    def __post_init__(self) -> None:
        KubeOptions.__post_init__(self)
        with Checks() as check:
            if self.form is not None:
                check("form", self.form, choice((REFERENCE, GUIDE)))
            if self.rdzv_backend is not None:
                check("rdzv_backend", self.rdzv_backend, choice(("c10d", "etcd", "etcd-v2")))
            good = self.queue_rank is None or 0 <= self.queue_rank <= 100
            check.that(good, "queue_rank", self.queue_rank, "an integer from 0 to 100")
            both = self.queue_rank is None or self.queue is not None
            check.that(both, "queue_rank", self.queue_rank, "only with queue")
            check.that(not (self.pause and self.debug), "pause", self.pause, "not together with debug")

    @property
    def by_kueue(self) -> bool:
        """Never: `queue` names one of T9k's scheduler."""
        return False


class TensorStackKind:
    """batch.tensorstack.dev/v1beta1 PyTorchTrainingJob."""

    name = "pytorchtrainingjob"
    options: type[KubeOptions] = TensorStackOptions
    resource = PYTORCHTRAININGJOBS
    container = "python"
    pod_label = JOB_LABEL
    longest_name = 53  # pods are named <job>-worker-<index>
    scales_in_place = True

    def check(self, spec: RunSpec, options: KubeOptions) -> list[Problem]:
        """The operator has its own scheduler, and its own torchrun before the agent."""
        mine = cast("TensorStackOptions", options)
        torchrun, board = mine.torchrun, mine.tensorboard
        if board is not None and not board.log_filesets and not spec.tensorboard:
            allowed = "folders such as t9k://pvc/logs/events, or tensorboard: true of the run, which writes such files"
            return [Problem("engine_options.tensorboard.log_filesets", [], allowed)]
        if options.wrapper and (
            torchrun or (torchrun is None and spec.workers.at_least < spec.workers.at_most)
        ):
            allowed = "unset where the operator's torchrun starts the agent: a run that may scale, or torchrun: true"
            return [Problem("engine_options.wrapper", list(options.wrapper), allowed)]
        if options.queueing == "kueue":
            return []
        allowed = "unset with pytorchtrainingjob: queue and queue_rank are those of its own scheduler"
        return [Problem("engine_options.queueing", options.queueing, allowed)]

    def render(self, job: Job, options: KubeOptions) -> list[tuple[Resource, dict[str, Any]]]:
        """The job, in the form that `options` say."""
        assert isinstance(options, TensorStackOptions)  # noqa: S101 - the engine has read them so
        form = _Form(options.form or REFERENCE)
        elastic = job.spec.workers.at_least < job.spec.workers.at_most and form.elastic
        torchrun = elastic if options.torchrun is None else options.torchrun
        # the pod's name ends in its number; its labels are unknown
        index = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        template = pod_template(job, options, container=self.container, index=index)
        if torchrun:
            _behind_torchrun(template, self.container)
        deadline = job.spec.active_deadline_seconds
        workers = {
            "type": "worker",
            "replicas": job.workers,
            "restartPolicy": "Never",
            "scalingWeight": options.scaling_weight if form.elastic else None,
            "template": template,
        }
        spec = {
            "replicaSpecs": [_said(workers)],
            "elastic": _elastic(job) if elastic and torchrun else None,
            "torchrunConfig": form.torchrun(options) if torchrun else None,
            "runMode": form.mode(options),
            # The run decides, and removes pods itself when it knows how they have ended.
            "runPolicy": _said(
                {
                    "backoffLimit": 0,
                    "activeDeadlineSeconds": None if deadline is None else math.ceil(deadline),
                    "cleanUpPolicy": "None",
                }
            ),
            "scheduler": _scheduler(options),
            "tensorboardSpec": _tensorboard(job, options),
        }
        metadata = named(job, options)
        kind = {"apiVersion": PYTORCHTRAININGJOBS.api_version, "kind": PYTORCHTRAININGJOBS.kind}
        return [(PYTORCHTRAININGJOBS, {**kind, "metadata": metadata, "spec": _said(spec)})]

    def workers(self, owner: Object) -> int:
        """`expectedReplicas` if the job is elastic, else `replicas`."""
        return int(owner["spec"]["workers"])

    def index(self, pod: Object) -> int | None:
        """The number at the end of the pod's name."""
        end = pod["metadata"]["name"].rpartition("-")[2]
        return int(end) if end.isdecimal() else None

    def scaled(self, owner: Object, workers: int) -> Change:
        """`expectedReplicas`: nothing else may change."""
        if "elastic" not in owner["spec"]:
            raise EngineError("this PyTorchTrainingJob is not elastic: it cannot be scaled in place")
        return Change({"spec": {"elastic": {"expectedReplicas": workers}}})

    def held(self, owner: Object) -> str | None:
        """Paused."""
        return "the PyTorchTrainingJob is paused" if owner["spec"]["paused"] else None

    def gone(self, owner: Object, index: int) -> WorkerStatus | None:
        """The job has the status of its first worker, and ends with it."""
        name, status = f"node-{index}", owner["status"]
        if status["Completed"] is not None:
            return WorkerStatus(name, WorkerPhase.SUCCEEDED)
        for condition in ("Failed", "ReplicaFailure"):
            if status[condition] is not None:
                why = f"the PyTorchTrainingJob has failed: {status[condition]}"
                return WorkerStatus(name, WorkerPhase.LOST, reason=why)
        return None

    def slim(self, owner: dict[str, Any]) -> dict[str, Any]:
        """Number of workers, pause, and the conditions that are true."""
        spec, status = owner["spec"], owner.get("status") or {}
        elastic = (spec.get("elastic") or {}).get("expectedReplicas")
        pause = (spec.get("runMode") or {}).get("pause") or {}
        true = {c["type"]: c for c in status.get("conditions") or () if c["status"] == "True"}
        told = ("Completed", "Failed", "ReplicaFailure")
        return {
            "metadata": {key: owner["metadata"][key] for key in ("name", "uid")},
            "spec": {
                "workers": spec["replicaSpecs"][0].get("replicas", 1) if elastic is None else elastic,
                "paused": bool(pause.get("enabled") or pause.get("enable")),
            },
            "status": {
                one: (true[one].get("message") or true[one].get("reason") or one) if one in true else None
                for one in told
            },
        }


class _Form:
    """The differences between the two published forms."""

    def __init__(self, name: str) -> None:
        self.elastic = name == REFERENCE
        self._on = "enabled" if self.elastic else "enable"

    def torchrun(self, options: TensorStackOptions) -> dict[str, Any]:
        config = {
            self._on: True,
            "minNodes": None if self.elastic else 1,
            "maxRestarts": 0,
            "procPerNode": "1",
            "rdzvBackend": options.rdzv_backend or "c10d",
            "extraOptions": [*_ALONE, *options.torchrun_options],
        }
        return _said(config)

    def mode(self, options: TensorStackOptions) -> dict[str, Any] | None:
        if options.debug is not None:
            one = {
                "type": "worker",
                "skipInitContainer": options.debug.skip_init_container,
                "command": list(options.debug.command) or None,
            }
            return {"debug": {self._on: True, "replicaSpecs": [_said(one)]}}
        return {"pause": {self._on: True}} if options.pause else None


def _behind_torchrun(template: dict[str, Any], name: str) -> None:
    """The operator replaces the command by `torchrun OPTIONS`, and appends the arguments."""
    for container in template["spec"]["containers"]:
        if container["name"] == name:
            python, *arguments = container["command"]
            container |= {"command": [python], "args": [*arguments, *container.get("args", ())]}


def _elastic(job: Job) -> dict[str, Any]:
    workers = job.spec.workers
    return {
        "enabled": True,
        "minReplicas": workers.at_least,
        "maxReplicas": workers.at_most,
        "expectedReplicas": job.workers,
    }


def _scheduler(options: TensorStackOptions) -> dict[str, Any] | None:
    if options.queue is None:
        return None
    return {"t9kScheduler": _said({"queue": options.queue, "priority": options.queue_rank})}


def _tensorboard(job: Job, options: TensorStackOptions) -> dict[str, Any] | None:
    board = options.tensorboard
    if board is None:
        return None
    own = fileset(job.run_uri, options) if job.spec.tensorboard else None
    return _said(
        {
            "image": board.image or options.image,
            "trainingLogFilesets": list(board.log_filesets or filter(None, [own])),
            "resources": {"requests": dict(board.resources)} if board.resources else None,
        }
    )


def _said(plain: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in plain.items() if value is not None}


def form_of(schema: Mapping[str, Any]) -> str:
    """Which form a schema of the kind has."""
    spec = schema.get("properties", {}).get("spec", {}).get("properties", {})
    torchrun = spec.get("torchrunConfig", {}).get("properties", {})
    return GUIDE if torchrun and "elastic" not in spec and "enabled" not in torchrun else REFERENCE


class TensorStackEngine(KubeEngine):
    """Workers as pods of TensorStack."""

    kind = TensorStackKind()

    async def _create(self, shared: Hub, job: Job, options: KubeOptions) -> None:
        assert isinstance(options, TensorStackOptions)  # noqa: S101 - read so
        if options.form is None:
            schema = await shared.client.schema(PYTORCHTRAININGJOBS)
            options = replace(options, form=form_of(schema))
        await super()._create(shared, job, options)

    async def scale(self, job: Job, workers: int) -> None:
        """Only an elastic job; refused before anything is written for further workers."""
        options = options_of(job.spec, self.kind.options)
        async with hub(self._reach(options)) as shared:
            owner = await shared.client.get(PYTORCHTRAININGJOBS, options.namespace, job.name)
            self.kind.scaled(owner, workers)
        await super().scale(job, workers)

    def storage_problem(self, job: Job) -> str | None:
        """Also if TensorStack's TensorBoard, which reads folders of PersistentVolumeClaims, cannot see the run."""
        options = cast("TensorStackOptions", options_of(job.spec, self.kind.options))
        board = options.tensorboard
        if board and not board.log_filesets and fileset(job.run_uri, options) is None:
            return (
                f"TensorStack's TensorBoard reads folders of PersistentVolumeClaims, and none holds {job.run_uri}: "
                "mount one with engine_options.volumes, name log_filesets, or leave engine_options.tensorboard out"
            )
        return super().storage_problem(job)

    def _begun(self, job: Job) -> dict[int, str]:
        """The workers' own records: a pod that is gone before anybody looks leaves nothing else."""
        return self._files(job).begun()
