"""What a trace says: jobs, machines, and when machines were away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from airflow_elastic.core.scaling.throughput import Fit
from airflow_elastic.spec.errors import InvalidInput


class TraceError(InvalidInput):
    """A file that is no trace of its format. The text names the file, the line and the field."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training. Times are seconds since the begin of the trace.

    Attributes:
        name: unique in its trace.
        submitted_at: when it was submitted.
        workers: the number that its owner asked for.
        least: fewest workers that it can train with.
        most: most workers that it may have.
        steps: of the whole training.
        curve: its true seconds a step for each number of workers. Policies see only what was measured.
        gpus: of each worker, all on one node.
        kind: jobs of the same kind are alike, e.g. of the same owner and size.
        crashes: seconds of training of one worker until its first crash, from there until the next, and so on.
    """

    name: str
    submitted_at: float
    workers: int
    least: int
    most: int
    steps: int
    curve: Fit
    gpus: int = 1
    kind: str = ""
    crashes: tuple[float, ...] = ()

    @property
    def useful(self) -> int:
        """The most workers that still make it faster."""
        curve = self.curve
        if curve.per_worker <= 0:
            return self.most if curve.divided > 0 else self.least
        about = math.sqrt(curve.divided / curve.per_worker)
        near = {min(max(int(about) + i, self.least), self.most) for i in (0, 1)}
        return min(near, key=lambda size: (curve.step_seconds(size), size))

    @property
    def needed(self) -> float:
        """GPU seconds of its steps with the fewest workers, which use them best."""
        return self.steps * self.curve.step_seconds(self.least) * self.least * self.gpus

    @property
    def shortest(self) -> float:
        """Seconds of its steps with the number of workers that makes it fastest."""
        return self.steps * self.curve.step_seconds(self.useful)


@dataclass(frozen=True, slots=True)
class Outage:
    """A node that is away, from `begins` to `ends`, seconds since the begin of the trace."""

    node: int
    begins: float
    ends: float


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in the order of their submission, and the cluster: so many nodes with so many GPUs each.

    Attributes:
        name: for display, with the seed if there is one.
        jobs: by time of submission.
        nodes: of the cluster.
        gpus: of each node.
        outages: of nodes; those of one node do not overlap.
        left_out: what a reader has left out, and how often, in words.
    """

    name: str
    jobs: tuple[Job, ...]
    nodes: int
    gpus: int
    outages: tuple[Outage, ...] = ()
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def capacity(self) -> int:
        """GPUs of the whole cluster."""
        return self.nodes * self.gpus

    def on(self, nodes: int, gpus: int) -> Trace:
        """The same jobs on another cluster, without outages. A job that cannot fit there is left out."""
        fits = [job for job in self.jobs if job.gpus <= gpus and job.least <= nodes * (gpus // job.gpus)]
        lost = len(self.jobs) - len(fits)
        cut = []
        for job in fits:
            room = nodes * (gpus // job.gpus)
            cut.append(replace(job, workers=min(job.workers, room), most=min(job.most, room)))
        left_out = self.left_out | ({"larger than the cluster": lost} if lost else {})
        return replace(self, jobs=tuple(cut), nodes=nodes, gpus=gpus, outages=(), left_out=left_out)


def ordered(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """The jobs by time of submission, which begins at 0."""
    if not jobs:
        return ()
    first = min(job.submitted_at for job in jobs)
    moved = [replace(job, submitted_at=job.submitted_at - first) for job in jobs]
    return tuple(sorted(moved, key=lambda job: (job.submitted_at, job.name)))
