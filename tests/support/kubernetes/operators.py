"""What makes and removes the pods of a job, for `job_world`: one for each kind of job that scales in place.

Each does what was seen of the real one (the Job controller of Kubernetes 1.31 to 1.37, Trainer 2.3, training-operator
1.9.3), and no more. TensorStack's is closed: of it is known that it follows `expectedReplicas`, and no more.
"""

from __future__ import annotations

from typing import Any, ClassVar

from airflow_elastic.adapters.kube.resources import JOBS, PODS, Resource
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.kinds.job import INDEX_ANNOTATION, JobEngine
from airflow_elastic.engines.kube.kinds.pytorchjob import PYTORCHJOBS, PyTorchJobEngine
from airflow_elastic.engines.kube.kinds.tensorstack import PYTORCHTRAININGJOBS, TensorStackEngine
from airflow_elastic.engines.kube.kinds.trainjob import TRAINJOBS, TrainJobEngine
from airflow_elastic.engines.kube.render.pod import JOB_LABEL
from tests.support.runs.job_world import JobWorld, Object, goes, is_over

Heard = dict[Resource, dict[str, Object]]

_INDEX, _BEFORE = "training.kubeflow.org/replica-index", "airflow-elastic/workers-before"


class Operator:
    """One kind of job.

    Attributes:
        engine: of the kind.
        holds_pods: whether a pod that has ended, and is deleted, stays until it lets go of it.
        fewest: workers that a job has to have.
        options: of the engine.
    """

    engine: ClassVar[type[KubeEngine]]
    holds_pods: ClassVar[bool] = False
    fewest: ClassVar[int] = 1
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, name: str) -> None:
        self.name = name

    def begin(self, world: JobWorld, workers: int) -> None:
        """Make the objects of a job."""
        raise NotImplementedError

    def act(self, world: JobWorld, heard: Heard) -> None:
        """Do what is to be done, by what it has heard."""
        raise NotImplementedError

    def number(self, pod: Object) -> int:
        """A pod's worker."""
        number = self.engine.kind.index(pod)
        assert number is not None
        return number

    def _metadata(self, name: str) -> Object:
        return {"name": name, "uid": name, "generation": 1}


class JobController(Operator):
    """Kubernetes' own, of an Indexed Job.

    It holds a terminating pod of an index that the job has for failed, and the index with it, for ever
    (`backoffLimitPerIndex: 0`). Names of pods are new ones each time.
    """

    engine = JobEngine
    holds_pods = True
    suffix = ""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._job = name + self.suffix
        self._expects: set[str] = set()
        self._failed: set[int] = set()
        self._done: set[int] = set()

    def begin(self, world: JobWorld, workers: int) -> None:
        spec = {"completions": workers, "parallelism": workers}
        world.set(JOBS, self._job, {"metadata": self._metadata(self._job), "spec": spec, "status": {}})

    def act(self, world: JobWorld, heard: Heard) -> None:
        if not heard.get(JOBS) or PODS not in heard:
            return
        completions, pods = heard[JOBS][self._job]["spec"]["completions"], heard[PODS]
        self._count(world, completions, pods)
        if self._expects & world.pods.keys() - pods.keys():
            return  # it has made pods that it has not heard of yet
        self._expects.clear()
        active = {self.number(pod): name for name, pod in pods.items() if not is_over(pod) and not goes(pod)}
        for index, name in active.items():
            if index >= completions:
                world.send_away(name)
        for index in range(completions):
            if index not in active and index not in self._failed | self._done:
                name = f"{self._job}-{index}-{world.made}"
                world.make(name, {JOB_LABEL: self.name, INDEX_ANNOTATION: str(index)})
                self._expects.add(name)

    def _count(self, world: JobWorld, completions: int, pods: dict[str, Object]) -> None:
        failed = {index for index in self._failed if index < completions}
        done = {index for index in self._done if index < completions}
        for name, pod in pods.items():
            index = self.number(pod)
            if index < completions and pod["status"]["phase"] == "Succeeded":
                done.add(index)
            elif index < completions and (is_over(pod) or goes(pod)):
                failed.add(index)
            if is_over(pod) and goes(pod):  # its finalizer goes, and with it the pod
                world.pods.pop(name, None)
        if (failed - done, done) != (self._failed, self._done):
            self._failed, self._done = failed - done, done
            lists = {"failedIndexes": self._failed, "completedIndexes": self._done}
            status = {name: ",".join(map(str, sorted(indexes))) for name, indexes in lists.items()}
            world.set(JOBS, self._job, {**world.objects[JOBS][self._job], "status": status})


class Trainer(JobController):
    """Of a TrainJob, by way of a JobSet and a Job, which neither of them puts back."""

    engine = TrainJobEngine
    suffix = "-node-0"

    def begin(self, world: JobWorld, workers: int) -> None:
        super().begin(world, workers)
        spec = {"trainer": {"numNodes": workers}}
        world.set(TRAINJOBS, self.name, {"metadata": self._metadata(self.name), "spec": spec})


class TrainingOperator(Operator):
    """Of a PyTorchJob with the restartPolicy Never.

    Names of pods are fixed. Where there are pods of higher numbers than the job has, it makes those between anew, and
    sends them away when it hears of them. A pod that has ended, or that runs and is to go, counts as failed; the job
    has Failed where there is one and fewer run than it is to have, and nothing is done for it any more.
    """

    engine = PyTorchJobEngine
    masters = 0

    def begin(self, world: JobWorld, workers: int) -> None:
        replicas = {"Worker": {"replicas": workers - self.masters}}
        if self.masters:
            replicas["Master"] = {"replicas": self.masters}
        spec = {"pytorchReplicaSpecs": replicas}
        world.set(PYTORCHJOBS, self.name, {"metadata": self._metadata(self.name), "spec": spec})

    def act(self, world: JobWorld, heard: Heard) -> None:
        if not heard.get(PYTORCHJOBS) or PODS not in heard:
            return
        if world.objects[PYTORCHJOBS][self.name].get("status"):
            return
        for kind, one in heard[PYTORCHJOBS][self.name]["spec"]["pytorchReplicaSpecs"].items():
            prefix = f"{self.name}-{kind.lower()}-"
            pods = {
                int(name.removeprefix(prefix)): pod
                for name, pod in heard[PODS].items()
                if name.startswith(prefix)
            }
            self._make(world, kind, one["replicas"], pods)
            self._count(world, kind, one["replicas"], [*pods.values()])

    def _make(self, world: JobWorld, kind: str, wanted: int, pods: dict[int, Object]) -> None:
        before = {_BEFORE: str(self.masters)} if kind == "Worker" and self.masters else {}
        for index in range(max(wanted, *(index + 1 for index in pods), 0)):
            name = f"{self.name}-{kind.lower()}-{index}"
            if index not in pods:
                world.make(name, {JOB_LABEL: self.name, _INDEX: str(index), **before})
            elif index >= wanted:
                world.send_away(name)

    def _count(self, world: JobWorld, kind: str, wanted: int, pods: list[Object]) -> None:
        phases = [(pod["status"]["phase"], goes(pod)) for pod in pods]
        failed = sum(phase == "Failed" or (phase == "Running" and to_go) for phase, to_go in phases)
        succeeded, active = sum(phase == "Succeeded" for phase, _ in phases), phases.count(("Running", False))
        if failed and wanted > succeeded + active:
            message = f"PyTorchJob {self.name} is failing because {failed} {kind} replica(s) failed."
            ended = {"type": "Failed", "status": "True", "message": message}
            found = world.objects[PYTORCHJOBS][self.name]
            world.set(PYTORCHJOBS, self.name, {**found, "status": {"conditions": [ended]}})


class TrainingOperatorWithMaster(TrainingOperator):
    """Of one whose worker 0 is the Master."""

    masters = 1
    fewest = 2
    options: ClassVar[dict[str, Any]] = {"master": True}


class TensorStack(Operator):
    """Of a PyTorchTrainingJob: it makes the pods that are not there, and sends those away that are too many."""

    engine = TensorStackEngine

    def begin(self, world: JobWorld, workers: int) -> None:
        spec: dict[str, Any] = {
            "replicaSpecs": [{"replicas": workers}],
            "elastic": {"enabled": True, "expectedReplicas": workers},
        }
        world.set(PYTORCHTRAININGJOBS, self.name, {"metadata": self._metadata(self.name), "spec": spec})

    def act(self, world: JobWorld, heard: Heard) -> None:
        if not heard.get(PYTORCHTRAININGJOBS) or PODS not in heard:
            return
        wanted = heard[PYTORCHTRAININGJOBS][self.name]["spec"]["elastic"]["expectedReplicas"]
        there = {self.number(pod) for pod in heard[PODS].values()}
        for index in there:
            if index >= wanted:
                world.send_away(f"{self.name}-worker-{index}")
        for index in set(range(wanted)) - there:
            world.make(f"{self.name}-worker-{index}", {JOB_LABEL: self.name})


OPERATORS: dict[str, type[Operator]] = {
    **{one.engine.kind.name: one for one in (JobController, Trainer, TrainingOperator, TensorStack)},
    "pytorchjob with a Master": TrainingOperatorWithMaster,
}
