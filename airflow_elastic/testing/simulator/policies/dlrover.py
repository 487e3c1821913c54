"""DLRover's scaling of all-reduce jobs, by its public source (`AllreduceTrainingAutoScaler` with its optimizer).

- A job begins with the nodes that are there, from the fewest to the most that it is configured with.
- Every 1800 s it plans the nodes that are alive, and the free ones in multiples of the node unit. The configured number
  is the most. A plan that is not larger than what is alive is ignored: it grows, and never shrinks.

In its source, the number of free nodes is always 0, with a note that the query is missing. Here it is the true number,
which is to its advantage.
"""

from __future__ import annotations

from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.scaling.policy import ScalingPolicy
from airflow_elastic.testing.simulator.policies.api import View
from airflow_elastic.testing.simulator.run import Run
from airflow_elastic.testing.simulator.traces.trace import Job

INTERVAL_SECONDS = 1800.0


def plan(alive: int, free: int, most: int, unit: int = 1) -> int:
    """The number of nodes that its optimizer plans."""
    return alive + min(free // unit * unit, most - alive)


class Dlrover:
    """Every job grows into what is free, on its own."""

    name = "dlrover"
    source = "github.com/intelligent-machine-learning/dlrover, job_auto_scaler.py and resource/job.py"
    interval = 60.0

    def __init__(self) -> None:
        self._looked: dict[int, float] = {}

    def workers(self, job: Job, view: View) -> Workers:
        return Workers(job.most, job.least, job.most)

    def own(self, job: Job) -> ScalingPolicy | None:
        return None

    def start(self, run: Run, room: int) -> int:
        return min(room, run.job.most) if room >= run.job.least else 0

    def least(self, run: Run) -> int:
        return run.job.least

    def look(self, view: View) -> float | None:
        again: float | None = None
        for run in view.running:
            last = self._looked.setdefault(run.order, view.now)
            if view.now - last >= INTERVAL_SECONDS and not view.busy(run):
                self._looked[run.order] = last = view.now
                wanted = plan(run.held, view.room(run), run.job.most)
                if wanted > run.held:
                    view.ask(run, wanted)
            if run.held < run.job.most:
                due = max(last + INTERVAL_SECONDS, view.now + self.interval)
                again = due if again is None else min(again, due)
        return again

    def ended(self, run: Run) -> None:
        self._looked.pop(run.order, None)
