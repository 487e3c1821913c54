"""The interface of a kind of job: the differences between the cluster APIs. Pure; `engine` does the I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from airflow_elastic.engines.kube.queues import native
from airflow_elastic.engines.kube.watch.events import wants
from airflow_elastic.engines.kube.watch.pod_status import read_pod
from airflow_elastic.spec.status import Asked, JobStatus, Waiting, WorkerPhase, WorkerStatus
from airflow_elastic.spec.validation import MOST_WORKERS

if TYPE_CHECKING:
    from airflow_elastic.adapters.kube import Resource
    from airflow_elastic.engines.api import Job
    from airflow_elastic.engines.kube.options import KubeOptions
    from airflow_elastic.spec.errors import Problem
    from airflow_elastic.spec.run import RunSpec

Object = Mapping[str, Any]


class Change(NamedTuple):
    """A merge patch, and the part of the object that it is for (None: the object itself)."""

    body: dict[str, Any]
    part: str | None = None


class Kind(Protocol):
    """One cluster API for jobs.

    Attributes:
        name: of the engine.
        options: the type of its `engine_options`.
        resource: the kind of object that owns all other objects of a job.
        container: the name that the training container must have.
        pod_label: the pod label whose value is the job's name.
        longest_name: the most letters of a job's name, so that the names of its pods fit.
        scales_in_place: whether a live job can change its workers.
    """

    name: str
    resource: Resource
    container: str
    pod_label: str
    longest_name: int
    scales_in_place: bool

    @property
    def options(self) -> type[KubeOptions]: ...

    def check(self, spec: RunSpec, options: KubeOptions) -> list[Problem]:
        """The parts of a specification that this kind cannot carry out."""
        ...

    def render(self, job: Job, options: KubeOptions) -> list[tuple[Resource, dict[str, Any]]]:
        """The objects of a job in the order of their creation. The owner owns those before it, too."""
        ...

    def workers(self, owner: Object) -> int:
        """How many workers the job should have now."""
        ...

    def index(self, pod: Object) -> int | None:
        """The number of a pod's worker; None for a pod that is no worker."""
        ...

    def scaled(self, owner: Object, workers: int) -> Change:
        """The change that gives a job this number of workers."""
        ...

    def held(self, owner: Object) -> str | None:
        """Why the job has no pods though it should: a queue has not admitted it, or has stopped it again."""
        ...

    def gone(self, owner: Object, index: int) -> WorkerStatus | None:
        """What the owner says about a worker without a pod; None if its pod is still to come."""
        ...

    def slim(self, owner: dict[str, Any]) -> dict[str, Any]:
        """The parts of an owner that are read."""
        ...


class Child(NamedTuple):
    """The object that an operator makes between the owner and the pods, and that holds the number of workers.

    It has the labels of the job. The owner's kind gets it, slim or None, as the owner's `child`.

    Attributes:
        kind: reads and scales it.
        suffix: of its name, after the job's name.
    """

    kind: Kind
    suffix: str

    def name(self, job: Job) -> str:
        """Its name."""
        return f"{job.name}{self.suffix}"


def deleted(name: str) -> JobStatus:
    """The status of a job whose objects are gone, though we have not deleted it."""
    reason = f"{name} was deleted by somebody else"
    return JobStatus((WorkerStatus("job", WorkerPhase.LOST, reason=reason),))


def lacks_pods(status: JobStatus) -> bool:
    """Whether a worker that should start has no pod, or one without a node."""
    return any(w.waiting is Waiting.STARTING and w.node is None for w in status.workers)


def pods_to_explain(kind: Kind, pods: Sequence[Object], status: JobStatus) -> dict[str, str]:
    """The uids of pods about which events may know more, by the names of their workers."""
    found = by_worker(kind, pods)
    return {
        one.name: found[one.name]["metadata"]["uid"]
        for one in status.workers
        if wants(one) and one.name in found
    }


def by_worker(kind: Kind, pods: Sequence[Object]) -> dict[str, Object]:
    """The newest pod of each worker, by its name: a replacement of another pod says that it may not start."""
    return {f"node-{index}": pod for index, pod in _by_index(kind, pods).items()}


def _by_index(kind: Kind, pods: Sequence[Object]) -> dict[int, Object]:
    oldest_first = sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    return {index: pod for pod in oldest_first if (index := kind.index(pod)) is not None}


def read_job(
    kind: Kind,
    owner: Object,
    pods: Sequence[Object],
    seen: dict[int, str],
    why: str | None = None,
    queue: str | None = None,
) -> JobStatus:
    """A snapshot of a job.

    Args:
        kind: reads the owner.
        owner: the job's own object.
        pods: all pods of the job, slim.
        seen: by the numbers of workers, their pods that have run; this call extends it.
        why: what delays pods that are not there yet; None if unknown.
        queue: a queue's words about a job or pods that it holds; None if there are none.
    """
    by_index = _by_index(kind, pods)
    # Somebody may have set any number in the job itself, so there is a limit to the workers that are listed.
    count, held = min(kind.workers(owner), MOST_WORKERS), kind.held(owner)
    held = held and (queue or held)
    workers = [_worker(kind, owner, by_index.get(i), i, held, seen, why, queue) for i in range(count)]
    left = [
        WorkerStatus(f"node-{i}", WorkerPhase.LEFT, reason="left by a scale step")
        for i in by_index
        if i >= count
    ]
    for i, worker in enumerate(workers):
        if i in by_index and worker.phase is not WorkerPhase.PENDING:
            seen.setdefault(i, by_index[i]["metadata"]["uid"])
    for i in [i for i in seen if i >= count]:
        del seen[i]
    return JobStatus((*native.in_plain_words(workers), *left), asked(owner, count))


def asked(owner: Object, workers: int) -> Asked | None:
    """The change that somebody else has made to a (slim) owner, which now has this number of workers.

    The run writes its own number beside the workers, in one patch. If they differ, somebody else has set the workers.
    """
    metadata = owner["metadata"]
    if metadata.get("told") in (None, workers):
        return None
    return Asked(workers, f"{metadata['name']}@{metadata['generation']}")


def _worker(
    kind: Kind,
    owner: Object,
    pod: Object | None,
    index: int,
    held: str | None,
    seen: dict[int, str],
    why: str | None,
    queue: str | None,
) -> WorkerStatus:
    name = f"node-{index}"
    read = None if pod is None else read_pod(dict(pod), kind.container, name)
    if held is not None:
        if index not in seen and (read is None or read.phase is WorkerPhase.PENDING):
            return WorkerStatus(name, WorkerPhase.PENDING, waiting=Waiting.QUEUED, reason=held)
        return WorkerStatus(name, WorkerPhase.LOST, reason=held, preempted=True)
    if pod is not None and seen.get(index, pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
        # The new pod may wait for a place, but nobody should wait for a worker that cannot start again.
        return WorkerStatus(name, WorkerPhase.LOST, reason="its pod is gone, and was made again")
    if read is not None and pod is not None:
        gang = (owner.get("child") or owner)["spec"].get("gang")
        if (waits := native.waits(gang, pod)) is not None:
            return replace(read, waiting=Waiting.QUEUED, reason=f"{waits}: {why}" if why else waits)
        return replace(read, reason=queue) if queue and read.waiting is Waiting.QUEUED else read
    told = kind.gone(owner, index)
    if told is not None and not (index in seen and told.phase is WorkerPhase.PENDING):
        return told
    if index in seen:
        return WorkerStatus(name, WorkerPhase.LOST, reason="its pod was deleted")
    reason = why or "its pod is not there yet"
    return WorkerStatus(name, WorkerPhase.PENDING, waiting=Waiting.STARTING, reason=reason)
