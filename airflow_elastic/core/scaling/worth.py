"""The rule `worth`: growing stops where the next workers add too little.

With `noise_scale` the statistical efficiency of a larger batch counts as well: `(noise + batch) / (noise + larger
batch)`, from McCandlish et al. 2018 in the form of Pollux (OSDI '21, section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_elastic.core.scaling.throughput import Fit
from airflow_elastic.core.scaling.want import Want, workers_text
from airflow_elastic.spec.scaling.observation import Observation
from airflow_elastic.spec.scaling.policy import WorthRule

#: How far beyond what is measured a curve may be trusted: to twice as many workers.
BEYOND = 2

#: A run that is too large by the rule shrinks only below this share of the threshold, so that it does not swing.
SHRINK_AT = 0.8

NOISE = "metrics.gradient_noise_scale"


def worthwhile(rule: WorthRule, sizes: Sequence[int], seen: Observation, curve: Fit) -> Want:
    """The most workers that are worth it, by the measured curve."""
    if seen.workers not in curve.sizes:
        return Want("worth", seen.workers, f"the speed with {workers_text(seen.workers)} is not measured yet")
    measured = [size for size in sizes if size in curve.sizes]
    trusted = BEYOND * max([*curve.sizes, seen.workers])
    best = seen.workers
    last: tuple[int, float] | None = None
    for size in (size for size in sizes if size > seen.workers):
        last = size, _marginal(rule, curve, best, size, seen)
        if last[1] < rule.efficiency:
            break
        if size > trusted and best > seen.workers:
            last = None
            break
        best, last = size, None
    if best == seen.workers and len(measured) > 1:
        below = [size for size in sizes if size < seen.workers]
        for size in reversed(below):
            share = _marginal(rule, curve, size, best, seen)
            if share >= SHRINK_AT * rule.efficiency:
                break
            last, best = (best, share), size
    needed = f"needed are {rule.efficiency:.0%}"
    figures = {"efficiency": rule.efficiency, "step_seconds": curve.step_seconds(seen.workers)}
    if last is not None:
        added = f"{max(0.0, last[1]):.0%} of a worker's share"
        reason = f"the step to {workers_text(last[0])} adds {added} for each, {needed}"
        return Want("worth", best, reason, {**figures, "marginal": last[1]})
    if best > seen.workers:
        share = _marginal(rule, curve, seen.workers, best, seen)
        reason = f"up to {best}, each adds {share:.0%} of a worker's share, {needed}"
        return Want("worth", best, reason, {**figures, "marginal": share})
    return Want("worth", best, "no larger size is allowed", figures)


def _marginal(rule: WorthRule, curve: Fit, fewer: int, more: int, seen: Observation) -> float:
    noise = seen.signals.get(NOISE) if rule.noise_scale else None
    rate = seen.signals.get("samples_per_second")
    if noise is None or rate is None or noise.value <= 0:
        return curve.marginal(fewer, more)
    batch = rate.value * curve.step_seconds(seen.workers) / seen.workers  # of one worker

    def useful(workers: int) -> float:
        efficiency = (noise.value + batch) / (noise.value + batch * workers)
        return workers / curve.step_seconds(workers) * efficiency

    return (useful(more) / useful(fewer) - 1.0) * fewer / (more - fewer)
