"""The rule `load`: signals with a target or a band.

The number of workers follows from the ratio of signal and target, as in Kubernetes' HorizontalPodAutoscaler. Each
signal speaks for itself; `decide` takes the highest number, so any signal may ask for more and all must agree to fewer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from airflow_elastic.core.scaling.want import Want, at_least, workers_text
from airflow_elastic.spec.scaling.observation import Observation, Signal
from airflow_elastic.spec.scaling.policy import LoadTarget, ScalingPolicy

#: Of these, less is a reason for more workers.
INVERSE = ("samples_per_second",)


def wants(policy: ScalingPolicy, sizes: Sequence[int], seen: Observation) -> Iterator[Want]:
    """What each signal wants."""
    for target in policy.load:
        signal = seen.signals.get(target.signal)
        if signal is None:
            yield Want("load", seen.workers, f"{target.signal} is not reported yet")
        else:
            yield _wanted(target, signal, policy.tolerance, sizes, seen.workers)


def _wanted(target: LoadTarget, signal: Signal, tolerance: float, sizes: Sequence[int], workers: int) -> Want:
    goal, slack = _goal(target, signal.value), 0.0 if target.target is None else tolerance
    figures = {target.signal: signal.value, "target": goal}
    text = f"{target.signal} is {signal.value:.3g}, {_allowed(target)}"
    more, fewer = signal.for_more, signal.for_fewer
    if more is not None and (ratio := _ratio(target, more, workers)) > 1 + slack:
        wanted = at_least(sizes, max(workers, workers * ratio))
        return Want("load", max(wanted, workers), text, figures)
    if fewer is not None and (ratio := _ratio(target, fewer, workers)) < 1 - slack:
        wanted = at_least(sizes, workers * ratio)
        return Want("load", min(wanted, workers), text, figures)
    return Want("load", workers, f"{text}: {workers_text(workers)} suit", figures)


def _goal(target: LoadTarget, value: float) -> float:
    """The target; of a band, the end that the value is nearer to."""
    if target.target is not None:
        return target.target
    low, high = target.low or 0.0, target.high or math.inf
    return high if value > (low + high) / 2 else low


def _ratio(target: LoadTarget, value: float, workers: int) -> float:
    """How many times the present number of workers the value asks for; 1 within a band."""
    if target.each:
        value /= workers
    if target.target is None:
        low, high = target.low or 0.0, target.high or math.inf
        goal = high if value > high else low if value < low else value
    else:
        goal = target.target
    if target.signal in INVERSE:
        return goal / value if value > 0 else math.inf
    return value / goal if goal else 1.0


def _allowed(target: LoadTarget) -> str:
    each = " a worker" if target.each else ""
    if target.target is not None:
        return f"the target {target.target:g}{each}"
    return f"the band {target.low:g} to {target.high:g}{each}"
