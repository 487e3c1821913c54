"""Synthetic traces: arrivals by time of day, sizes and durations as public traces have them, machines that fail.

The shapes are those of the public traces that `philly`, `helios` and `pai` read:

- Most jobs have few GPUs, and a few have many.
- Durations are heavy-tailed, with a median of minutes and a mean of hours.
- Arrivals follow the day.

Times between failures of a machine are Weibull with a shape below 1, and repairs are lognormal (Schroeder and Gibson,
DSN '06).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.testing.simulator.traces.trace import Job, Outage, Trace, ordered
from airflow_elastic.testing.simulator.traces.workloads import Elasticity, job

DAY = 86_400.0

#: GPUs that jobs ask for, and how often.
SIZES = ((1, 0.50), (2, 0.12), (4, 0.15), (8, 0.16), (16, 0.05), (32, 0.02))


@dataclass(frozen=True, slots=True)
class Synthetic:
    """What is drawn.

    Attributes:
        runs: how many jobs.
        days: within which they are submitted.
        nodes: of the cluster; 0: as many as give the `load`.
        gpus: of each node.
        load: needed GPU time of all jobs, as a share of what the cluster has in these days.
        kinds: different models; jobs of one model and size are alike.
        median_seconds: of a job's duration.
        sigma: of the logarithm of durations.
        swing: how much busier the busiest hour is than the mean; 0: the same at all hours.
        fail_hours: mean hours between failures of one node; 0: none fail.
        fail_shape: of the Weibull distribution of these.
        repair_seconds: median of the lognormal time until a node is back.
        elasticity: which sizes jobs may have, and how often they crash.
    """

    runs: int = 200
    days: float = 2.0
    nodes: int = 0
    gpus: int = 8
    load: float = 0.7
    kinds: int = 20
    median_seconds: float = 1800.0
    sigma: float = 1.6
    swing: float = 0.6
    fail_hours: float = 700.0
    fail_shape: float = 0.7
    repair_seconds: float = 3600.0
    elasticity: Elasticity = field(default_factory=Elasticity)

    def __post_init__(self) -> None:
        for name in ("runs", "gpus", "kinds"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name}: given {getattr(self, name)}; allowed: an integer from 1")
        for name in ("days", "load", "median_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name}: given {getattr(self, name)}; allowed: a number above 0")


def synthetic(what: Synthetic, seed: int) -> Trace:
    """A trace by chance: the same for the same seed."""
    chance = random.Random(seed)
    jobs = [_job(what, chance, number, seed) for number in range(what.runs)]
    nodes = what.nodes or _nodes(what, jobs)
    trace = Trace(f"synthetic, seed {seed}", ordered(jobs), nodes, what.gpus).on(nodes, what.gpus)
    outages = drawn_outages(
        chance, nodes, 2 * what.days * DAY, what.fail_hours, what.fail_shape, what.repair_seconds
    )
    return Trace(trace.name, trace.jobs, nodes, what.gpus, outages, trace.left_out)


def _job(what: Synthetic, chance: random.Random, number: int, seed: int) -> Job:
    at = _arrival(what, chance)
    sizes, weights = zip(*SIZES, strict=True)
    gpus = chance.choices(sizes, weights)[0]
    seconds = chance.lognormvariate(math.log(what.median_seconds), what.sigma)
    seconds = min(max(seconds, 60.0), what.days * DAY)
    kind = f"model-{chance.randrange(what.kinds)}/{gpus}"
    return job(f"job-{number}", at, gpus, seconds, kind, seed, what.elasticity)


def _arrival(what: Synthetic, chance: random.Random) -> float:
    """A moment, drawn from a rate that follows the time of day: highest in the afternoon, lowest at night."""
    while True:
        at = chance.uniform(0.0, what.days * DAY)
        rate = 1.0 + what.swing * math.sin(2 * math.pi * (at / DAY - 0.375))
        if chance.uniform(0.0, 1.0 + what.swing) <= rate:
            return at


def _nodes(what: Synthetic, jobs: list[Job]) -> int:
    needed = sum(one.steps * one.curve.step_seconds(one.workers) * one.workers for one in jobs)
    wanted = needed / (what.load * what.days * DAY * what.gpus)
    largest = max(one.workers for one in jobs) / what.gpus
    return max(1, math.ceil(max(wanted, largest)))


def drawn_outages(
    chance: random.Random,
    nodes: int,
    seconds: float,
    fail_hours: float,
    fail_shape: float = 0.7,
    repair_seconds: float = 3600.0,
) -> tuple[Outage, ...]:
    """Outages of so many nodes within so many seconds; see `Synthetic` for the rest."""
    if not fail_hours:
        return ()
    scale = fail_hours * 3600.0 / math.gamma(1.0 + 1.0 / fail_shape)
    found = []
    for node in range(nodes):
        at = chance.uniform(0.0, 1.0) * chance.weibullvariate(scale, fail_shape)
        while at < seconds:
            ends = at + chance.lognormvariate(math.log(repair_seconds), 1.0)
            found.append(Outage(node, at, ends))
            at = ends + chance.weibullvariate(scale, fail_shape)
    return tuple(sorted(found, key=lambda one: (one.begins, one.node)))


def with_outages(trace: Trace, fail_hours: float, seed: int) -> Trace:
    """The same trace, with machines that fail by chance, until twice as long as jobs are submitted."""
    last = trace.jobs[-1].submitted_at if trace.jobs else 0.0
    seconds = 2 * (last + DAY)
    return replace(trace, outages=drawn_outages(random.Random(seed), trace.nodes, seconds, fail_hours))
