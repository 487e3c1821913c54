"""A kind of job: what differs between one cluster API and the next. Pure, all of it; `engine` does the talking."""

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
        options: what its `engine_options` are read as.
        resource: of the object that owns everything else of a job.
        container: the name that the training container must have.
        pod_label: the pod label whose value is the job's name.
        longest_name: letters that a job's name may have, so that the names of its pods fit.
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
        """What this kind cannot carry out."""
        ...

    def render(self, job: Job, options: KubeOptions) -> list[tuple[Resource, dict[str, Any]]]:
        """The objects of a job in the order of their creation. The owner owns those before it, too."""
        ...

    def workers(self, owner: Object) -> int:
        """How many workers the job is to have now."""
        ...

    def index(self, pod: Object) -> int | None:
        """The number of a pod's worker; None for a pod that is no worker."""
        ...

    def scaled(self, owner: Object, workers: int) -> Change:
        """What changes a job to this number of workers."""
        ...

    def held(self, owner: Object) -> str | None:
        """Why the job has no pods though it should: a queue has not admitted it, or has taken it back."""
        ...

    def gone(self, owner: Object, index: int) -> WorkerStatus | None:
        """What the owner tells of a worker whose pod is not there (any more); None where that is still to come."""
        ...

    def slim(self, owner: dict[str, Any]) -> dict[str, Any]:
        """What is read of an owner."""
        ...


class Child(NamedTuple):
    """What an operator makes between the owner and the pods, and what holds the number of workers.

    It bears the labels of the job. The kind of the owner finds it, slim or None, as the owner's `child`.

    Attributes:
        kind: reads and scales it.
        suffix: of its name, behind the job's.
    """

    kind: Kind
    suffix: str

    def name(self, job: Job) -> str:
        """Its name."""
        return f"{job.name}{self.suffix}"


def deleted(name: str) -> JobStatus:
    """A job of which nothing is there, though we have not deleted it."""
    reason = f"{name} was deleted by somebody else"
    return JobStatus((WorkerStatus("job", WorkerPhase.LOST, reason=reason),))


def lacks_pods(status: JobStatus) -> bool:
    """Whether a worker is to start that has no pod, or one that nobody has put anywhere."""
    return any(w.waiting is Waiting.STARTING and w.node is None for w in status.workers)


def silent(kind: Kind, pods: Sequence[Object], status: JobStatus) -> dict[str, str]:
    """The uids of pods of which events may know more, by the names of their workers."""
    found = by_worker(kind, pods)
    return {
        one.name: found[one.name]["metadata"]["uid"]
        for one in status.workers
        if wants(one) and one.name in found
    }


def by_worker(kind: Kind, pods: Sequence[Object]) -> dict[str, Object]:
    """The newest pod of each worker, by its name: one that was made in place of another tells that it may not start."""
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
        kind: which reads the owner.
        owner: the job's own object.
        pods: all pods of the job, slim.
        seen: by the numbers of workers, the pods of theirs that have run; extended.
        why: what is in the way of pods that are not there yet; None where nothing is known.
        queue: what a queue says of a job or of pods that it holds; None where it says nothing.
    """
    by_index = _by_index(kind, pods)
    # Somebody may have asked the job itself for any number: more are not to be looked at one by one.
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
    """The change that somebody else has made to a (slim) owner with this number of workers.

    The run writes its own number beside the workers, in one patch: where they differ, the workers are somebody else's.
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
        # Which may wait for a place: nobody is to wait for a worker that has had its life.
        return WorkerStatus(name, WorkerPhase.LOST, reason="its pod is gone, and was made anew")
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
