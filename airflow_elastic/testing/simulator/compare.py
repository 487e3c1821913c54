"""One trace under several policies, beside what no schedule can beat."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_elastic.testing.simulator.costs import Costs
from airflow_elastic.testing.simulator.metrics import Figures, figures
from airflow_elastic.testing.simulator.oracle import Bounds, bounds
from airflow_elastic.testing.simulator.policies.known import policy
from airflow_elastic.testing.simulator.simulation import Simulation
from airflow_elastic.testing.simulator.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Comparison:
    """The figures of each policy, and the bounds of the trace. `took`: real seconds of each simulation."""

    trace: Trace
    bounds: Bounds
    figures: tuple[Figures, ...]
    took: tuple[float, ...]


def compare(
    trace: Trace, names: Sequence[str], costs: Costs | None = None, *, in_place: bool = True
) -> Comparison:
    """Play the trace once under each policy."""
    costs = costs or Costs()
    done = list(_played(trace, names, costs, in_place))
    return Comparison(trace, bounds(trace, costs), tuple(f for f, _ in done), tuple(t for _, t in done))


def _played(
    trace: Trace, names: Sequence[str], costs: Costs, in_place: bool
) -> Iterator[tuple[Figures, float]]:
    for name in names:
        begun = time.perf_counter()
        done = Simulation(trace, policy(name), costs, in_place=in_place).play()
        yield figures(name, done, trace.capacity), time.perf_counter() - begun
