"""The interface of policies, and of the cluster that they see."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.scaling.observation import Decision, Observation
from airflow_elastic.spec.scaling.policy import ScalingPolicy
from airflow_elastic.testing.simulator.run import Run
from airflow_elastic.testing.simulator.traces.trace import Job


class View(Protocol):
    """The cluster and its runs at one moment, and the ways to change the size of a run."""

    now: float

    @property
    def running(self) -> Collection[Run]:
        """Runs that hold room, in the order of their submission."""

    @property
    def waiting(self) -> Collection[Run]:
        """Runs that wait for room, in the order of their submission."""

    @property
    def capacity(self) -> int:
        """GPUs that are there."""

    @property
    def free(self) -> int:
        """GPUs that nobody has."""

    def room(self, run: Run) -> int:
        """For how many further workers of this run there is room."""

    def busy(self, run: Run) -> str | None:
        """Why the run cannot change its size now, in words; None if it can."""

    def ask(self, run: Run, workers: int) -> None:
        """Somebody outside the run asks for so many workers. More than there is room for are not given."""

    def requeue(self, run: Run) -> None:
        """The policy would start a waiting run with another number of workers than before."""

    def decided(self, run: Run, decision: Decision, seen: Observation) -> None:
        """The run's own policy has decided."""


class Policy(Protocol):
    """Who chooses the number of workers.

    Attributes:
        name: for tables.
        source: the paper or document that it follows.
        interval: seconds; it looks at the cluster at multiples of this, when something has changed.
    """

    name: str
    source: str
    interval: float

    def workers(self, job: Job, view: View) -> Workers:
        """How many workers a new run begins with, and its limits."""

    def own(self, job: Job) -> ScalingPolicy | None:
        """The policy that is part of the run's specification, if there is one."""

    def start(self, run: Run, room: int) -> int:
        """With how many workers a waiting run starts where there is so much room; 0: it waits."""

    def least(self, run: Run) -> int:
        """The fewest workers with which `start` may start it."""

    def look(self, view: View) -> float | None:
        """Change sizes. Returns when it wants to look again if nothing else changes; None: not before."""

    def ended(self, run: Run) -> None:
        """A run is over; what it has measured may be kept."""
