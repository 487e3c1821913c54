"""Sizes that never change: as few as possible, as requested, or as many as allowed.

So is a job of Kubernetes, Slurm or Kueue whose size does not change. It starts when all its workers have room.
"""

from __future__ import annotations

from airflow_elastic.spec.run import Workers
from airflow_elastic.testing.simulator.policies.api import View
from airflow_elastic.testing.simulator.policies.whole import Whole
from airflow_elastic.testing.simulator.traces.trace import Job


class Static(Whole):
    """One fixed size for each job.

    Args:
        which: `least`, `requested`, or `most`.
    """

    source = "a job of a fixed size"
    interval = float("inf")

    def __init__(self, which: str) -> None:
        self.name, self._which = f"static-{which}", which

    def workers(self, job: Job, view: View) -> Workers:
        sizes = {"least": job.least, "requested": job.workers, "most": job.useful}
        return Workers(sizes[self._which])

    def look(self, view: View) -> float | None:
        return None
