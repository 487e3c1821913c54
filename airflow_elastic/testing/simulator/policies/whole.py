"""What policies have in common under which a run starts with all its workers, or waits."""

from __future__ import annotations

from airflow_elastic.spec.scaling.policy import ScalingPolicy
from airflow_elastic.testing.simulator.run import Run
from airflow_elastic.testing.simulator.traces.trace import Job


class Whole:
    """Starts a run when there is room for all its workers. The run itself decides nothing."""

    def own(self, job: Job) -> ScalingPolicy | None:
        return None

    def start(self, run: Run, room: int) -> int:
        count = run.state.target
        return count if room >= count else 0

    def least(self, run: Run) -> int:
        return run.state.target

    def ended(self, run: Run) -> None:
        return
