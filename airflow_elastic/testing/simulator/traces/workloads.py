"""The parts of a job that public traces leave out: how its speed depends on its workers, and its crashes.

They have the time that a job took with its GPUs. The shape of its curve is drawn by chance, from the seed and
the job's kind, so that jobs of one kind are alike. The curve is then scaled until the job takes as long as it did.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from airflow_elastic.core.scaling.throughput import Fit
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.testing.simulator.traces.trace import Job

#: Seconds a step with the number of workers that was asked for: the limits of what is drawn.
STEP_SECONDS = (0.2, 4.0)

#: Each of the requested workers gives such a share of the speed of one alone: its owner has seen that so many pay. Jobs
#: that asked for one worker have this share with `REFERENCE` workers.
EFFICIENCY, REFERENCE = (0.6, 0.95), 4

#: Jobs of one kind differ from each other by about this share.
ALIKE = 0.05


@dataclass(frozen=True, slots=True)
class Elasticity:
    """Which sizes jobs may have, and how often they crash.

    Attributes:
        shrink: a job can train with its requested workers divided by this.
        grow: and with its requested workers times this, at most `most`.
        most: workers that no job exceeds.
        crash_hours: mean hours of training of one worker between crashes of its process; 0: none crash.
        crash_shape: of the Weibull distribution. Below 1, as is usual, crashes follow each other closely.
    """

    shrink: int = 4
    grow: int = 4
    most: int = 64
    crash_hours: float = 400.0
    crash_shape: float = 0.75

    def __post_init__(self) -> None:
        for name in ("shrink", "grow", "most"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name}: given {getattr(self, name)}; allowed: an integer from 1")


def job(
    name: str,
    submitted_at: float,
    gpus: int,
    seconds: float,
    kind: str,
    seed: int,
    elasticity: Elasticity,
) -> Job:
    """A job that takes so many seconds with so many GPUs, one for each worker.

    Args:
        name: unique in its trace.
        submitted_at: seconds since the begin of the trace.
        gpus: that its owner asked for.
        seconds: how long it trains with them, without failures.
        kind: what it has in common with others.
        seed: of the trace.
        elasticity: which sizes it may have.
    """
    shared = random.Random(f"{seed}/{kind}")
    raw = _curve(shared.uniform(*EFFICIENCY), shared.random(), gpus if gpus > 1 else REFERENCE)
    step = shared.uniform(*STEP_SECONDS)
    own = random.Random(f"{seed}/{kind}/{name}")
    step *= max(0.5, own.gauss(1.0, ALIKE))
    steps = max(1, round(seconds / step))
    scale = seconds / steps / raw.step_seconds(gpus)
    curve = Fit(raw.fixed * scale, raw.divided * scale, raw.per_worker * scale, ())
    most = max(gpus, min(gpus * elasticity.grow, elasticity.most))
    least = max(1, gpus // elasticity.shrink)
    made = Job(name, submitted_at, gpus, least, most, steps, curve, kind=kind)
    if not elasticity.crash_hours:
        return made
    return Job(name, submitted_at, gpus, least, most, steps, curve, 1, kind, _crashes(made, own, elasticity))


def _curve(efficiency: float, fixed: float, workers: int) -> Fit:
    """One second on one worker, and this efficiency with so many. `fixed`: the share of the loss that does not grow."""
    loss = (1.0 / efficiency - 1.0) / workers
    alone = fixed * loss / (1.0 - 1.0 / workers)
    return Fit(alone, 1.0 - alone, (1.0 - fixed) * loss / (workers - 1), ())


def _crashes(made: Job, chance: random.Random, elasticity: Elasticity) -> tuple[float, ...]:
    """More than it can meet, whatever its size: repeated steps prolong it."""
    mean, shape = elasticity.crash_hours * 3600.0, elasticity.crash_shape
    found: list[float] = []
    total = 0.0
    longest = 3.0 * made.steps * made.curve.step_seconds(made.most) * made.most
    while total < longest and len(found) < 1000:
        found.append(chance.weibullvariate(mean / _mean_of_weibull(shape), shape))
        total += found[-1]
    return tuple(found)


def _mean_of_weibull(shape: float) -> float:
    return math.gamma(1.0 + 1.0 / shape)
