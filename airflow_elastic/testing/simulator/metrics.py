"""What is measured of a simulation. GPU time is in GPU seconds: GPUs times seconds.

- `makespan`: from the first submission to the end of the last run.
- `waiting`: of a run, from its submission to its first room. `duration`: from its submission to its end.
- GPU time that was there until the last end = held + idle while wanted + idle. Each GPU second is in one row:
  - `needed`: the run's steps, each counted once, at the speed of its fewest workers, which use GPUs best.
  - `diluted`: more than that for the same steps, because more workers divide them less well. Holding twice as many
    GPUs for 1.5 times the speed dilutes a quarter of them.
  - `overhead`: starting, saving, repeating steps that were lost, and leaving.
  - `idle_while_wanted`: free, while a run waited or would have been faster with it.
  - `idle`: free, and no run that was there could use it.
- `wasted` = diluted + overhead. `lost` = idle while wanted + wasted: the figure to make small.
- `goodput`: needed / (available - idle). It is the needed share of the GPU time that work could use.
- `rho`: of a run, its duration / the time that it would take alone with an equal part of the cluster. This is the
  finish-time fairness of Themis (Mahajan et al., NSDI '20). The part is capacity / mean number of runs present.
  `jain`: Jain's index of 1 / rho over all runs: 1 if all are served alike, 1 / n if one run gets everything.
  `worst`: the 99th percentile of rho.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_elastic.core.history.quantile import quantile
from airflow_elastic.testing.simulator.simulation import Simulation
from airflow_elastic.testing.simulator.traces.trace import Job


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one policy on one trace. Times are seconds, GPU times GPU seconds; see the module for what each means."""

    policy: str
    runs: int
    succeeded: int
    makespan: float
    waiting: float
    waiting_worst: float
    duration: float
    duration_worst: float
    available: float
    needed: float
    diluted: float
    starting: float
    saving: float
    repeated: float
    leaving: float
    idle_while_wanted: float
    idle: float
    jain: float
    rho_mean: float
    rho_worst: float
    scale_steps: int
    restarts: int
    looks: int
    events: int

    @property
    def overhead(self) -> float:
        """Held GPU time in which no step was made that counts."""
        return self.starting + self.saving + self.repeated + self.leaving

    @property
    def wasted(self) -> float:
        """Held GPU time beyond what the steps need."""
        return self.diluted + self.overhead

    @property
    def lost(self) -> float:
        """Idle while wanted, plus wasted."""
        return self.idle_while_wanted + self.wasted

    @property
    def goodput(self) -> float:
        """The share of the GPU time that work could use that did needed work."""
        usable = self.available - self.idle
        return self.needed / usable if usable else 0.0


def figures(name: str, done: Simulation, capacity: int) -> Figures:
    """The figures of a simulation that is over."""
    runs = done.runs
    waits = [_or(run.first_start, done.now) - run.job.submitted_at for run in runs]
    durations = [_or(run.ended_at, done.now) - run.job.submitted_at for run in runs]
    needed = sum(run.job.needed * run.kept / run.job.steps for run in runs)
    rho = _rho([run.job for run in runs], durations, done.now, capacity)
    parts = {
        part: sum(getattr(run.account, part) for run in runs)
        for part in ("starting", "saving", "repeated", "leaving")
    }
    return Figures(
        policy=name,
        runs=len(runs),
        succeeded=sum(run.state.outcome == "succeeded" for run in runs),
        makespan=done.now,
        waiting=_mean(waits),
        waiting_worst=_worst(waits),
        duration=_mean(durations),
        duration_worst=_worst(durations),
        available=done.available,
        needed=needed,
        diluted=sum(run.account.training for run in runs) - needed,
        **parts,
        idle_while_wanted=done.idle_while_wanted,
        idle=done.idle,
        jain=_jain([1 / one for one in rho]),
        rho_mean=_mean(rho),
        rho_worst=_worst(rho),
        scale_steps=sum(run.scale_steps for run in runs),
        restarts=sum(run.restarts for run in runs),
        looks=done.looks,
        events=done.events,
    )


def _or(at: float | None, now: float) -> float:
    return now if at is None else at


def _rho(jobs: Sequence[Job], durations: Sequence[float], span: float, capacity: int) -> list[float]:
    """Finish-time fairness of each job."""
    if not jobs or span <= 0:
        return []
    present = max(1.0, sum(durations) / span)
    found = []
    for job, took in zip(jobs, durations, strict=True):
        part = int(capacity / present / job.gpus)
        size = min(max(part, job.least), job.useful)
        # A part that is smaller than the fewest workers is shared in time.
        slower = max(1.0, job.least * job.gpus * present / capacity)
        found.append(took / (job.steps * job.curve.step_seconds(size) * slower))
    return found


def _jain(values: Sequence[float]) -> float:
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _worst(values: Sequence[float]) -> float:
    """The 99th percentile; 0 without any."""
    return quantile(sorted(values), 0.99) or 0.0


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
