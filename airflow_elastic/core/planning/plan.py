"""The plan for a run: numbers of workers with time and cost, the recommended one, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_elastic.core.planning.duration import duration, interval_best, interval_now, spread
from airflow_elastic.core.planning.parts import Part, parts
from airflow_elastic.core.scaling.decide import wanted
from airflow_elastic.core.scaling.throughput import Fit, fit
from airflow_elastic.core.scaling.worth import BEYOND
from airflow_elastic.spec.scaling.form import sizes
from airflow_elastic.spec.scaling.observation import Observation

if TYPE_CHECKING:
    from airflow_elastic.core.planning.known import Known
    from airflow_elastic.spec.run import RunSpec

#: Without a rule for it, a further worker is worth it while it adds this share of what a worker gives on average.
EFFICIENCY = 0.5

#: A part of the time is worth a hint from this share on.
LARGE = 0.2

#: An interval of saves that is this many times too long or too short is worth a hint.
OFF = 1.5


@dataclass(frozen=True, slots=True)
class Option:
    """The run with one number of workers. None: unknown.

    Attributes:
        workers: that number.
        allowed: whether the specification permits it.
        measured: whether its step time was measured, and is not from the curve.
        step_seconds: seconds a step.
        spread: the relative spread of that.
        seconds: until the training is done.
        low: the same if all goes well.
        high: the same if it does not.
        gpu_hours: ranks times hours until then.
        cost: that times the price.
        efficiency: speed for each worker, as a share of that with the fewest workers of all options.
    """

    workers: int
    allowed: bool
    measured: bool
    step_seconds: float
    spread: float
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    gpu_hours: float | None = None
    cost: float | None = None
    efficiency: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan.

    Attributes:
        workers: how many the specification begins with.
        recommended: how many are best, by the policy of the specification or by their worth; None: unknown.
        why: the reason.
        options: numbers of workers, ascending; the recommended one is among them.
        parts: where the time goes with the recommended number, the largest first.
        interval_seconds: the best time between two saves; None: unknown.
        interval_now: as the specification has it; None: unknown.
        interval_why: the reason for the best one.
        step: the newest step.
        total_steps: the last step; None: unknown.
        runs: how many runs it rests on.
        unknown: what is unknown, and how it would become known.
        changes: what would change the plan, with figures.
    """

    workers: int
    recommended: int | None
    why: str
    options: tuple[Option, ...] = ()
    parts: tuple[Part, ...] = ()
    interval_seconds: float | None = None
    interval_now: float | None = None
    interval_why: str = ""
    step: int = 0
    total_steps: int | None = None
    runs: int = 0
    unknown: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()

    @property
    def bottleneck(self) -> Part | None:
        """The largest part of the time, other than computation unless nothing else counts."""
        others = [one for one in self.parts if one.name not in ("computation", "steps")]
        large = [one for one in others if one.share >= LARGE]
        return large[0] if large else self.parts[0] if self.parts else None


def plan(spec: RunSpec, known: Known, now: float, price: float | None = None) -> Plan:
    """The plan for a run.

    Args:
        spec: the run.
        known: what is known about its times.
        now: epoch seconds, for rules that know the time.
        price: of a GPU hour, that is of one rank for an hour; None: unknown.
    """
    curve, workers = fit(known.speeds), spec.workers
    unknown = tuple(_unknown(known, curve))
    if curve is None:
        why = "no step time is known"
        return Plan(
            workers.count,
            None,
            why,
            step=known.step,
            total_steps=known.total_steps,
            runs=known.runs,
            unknown=unknown,
        )
    possible = sizes(spec.scaling_policy, workers) if spec.scaling_policy else _permitted(spec)
    recommended, why = _recommended(spec, known, curve, possible, now)
    numbers = _numbers(spec, curve, possible, recommended)
    options = tuple(_option(spec, known, curve, number, price, numbers[0]) for number in numbers)
    steps = _left(known)
    took = duration(spec, known, curve, recommended, steps if steps else 1000)
    best = interval_best(known, recommended)
    found = Plan(
        workers=workers.count,
        recommended=recommended,
        why=why,
        options=options,
        parts=parts(known, curve, recommended, took),
        interval_seconds=None if best is None else best.seconds,
        interval_now=interval_now(spec, known, recommended, curve.step_seconds(recommended)),
        interval_why="" if best is None else best.reason,
        step=known.step,
        total_steps=known.total_steps,
        runs=known.runs,
        unknown=unknown,
    )
    return _with_changes(spec, known, curve, found)


def _permitted(spec: RunSpec) -> tuple[int, ...]:
    workers = spec.workers
    return tuple(range(workers.at_least, workers.at_most + 1, workers.node_unit))


def _left(known: Known) -> int | None:
    return None if known.total_steps is None else max(0, known.total_steps - known.step)


def _recommended(
    spec: RunSpec, known: Known, curve: Fit, possible: Sequence[int], now: float
) -> tuple[int, str]:
    count, policy = spec.workers.count, spec.scaling_policy
    if policy is not None:
        seen = Observation(
            at=now,
            workers=count,
            procs=spec.workers.procs,
            opened_at=now,
            step=known.step,
            total_steps=known.total_steps,
            speeds=known.speeds,
            cost_seconds=known.cost_seconds or known.start_seconds or 0.0,
            used_gpu_hours=known.used_gpu_hours,
        )
        want = wanted(policy, spec.workers, possible, seen, curve)
        return want.workers, want.reason
    if len(possible) < 2:
        return count, f"the specification permits only {count}"
    if len(curve.sizes) < 2:
        return count, "only one number of workers is measured, so the worth of others is unknown"
    best = possible[0]
    for size in possible[1:]:
        if size > BEYOND * curve.sizes[-1] or curve.marginal(best, size) < EFFICIENCY:
            break
        best = size
    return best, f"up to there each further worker adds at least {EFFICIENCY:.0%} of a worker's share"


def _numbers(spec: RunSpec, curve: Fit, possible: Sequence[int], recommended: int) -> list[int]:
    """The numbers of workers to show: the bounds, doublings between them, the measured ones, one beyond."""
    unit = spec.workers.node_unit
    doubled, size = [], unit
    while size < possible[-1]:
        doubled.append(size)
        size *= 2
    beyond = [2 * possible[-1]] if curve.marginal(possible[-1], 2 * possible[-1]) >= EFFICIENCY else []
    wanted = {possible[0], possible[-1], spec.workers.count, recommended, *beyond}
    return sorted(wanted | ({*doubled, *curve.sizes} & {*possible}) | {*curve.sizes})


def _option(
    spec: RunSpec, known: Known, curve: Fit, workers: int, price: float | None, fewest: int
) -> Option:
    each, steps = curve.step_seconds(workers), _left(known)
    efficiency = (curve.step_seconds(fewest) * fewest) / (each * workers) if each > 0 else 1.0
    measured = workers in curve.sizes
    option = Option(
        workers, spec.workers.permits(workers), measured, each, spread(curve, workers), efficiency=efficiency
    )
    if steps is None:
        return option
    took = duration(spec, known, curve, workers, steps)
    hours = took.seconds * workers * spec.workers.procs / 3600.0
    cost = None if price is None else hours * price
    return replace(option, seconds=took.seconds, low=took.low, high=took.high, gpu_hours=hours, cost=cost)


def _unknown(known: Known, curve: Fit | None) -> Iterator[str]:
    if curve is None:
        yield "the time of a step: no run like this one is known; run it, then `airflow-elastic brain learn ROOT`"
    elif len(curve.sizes) < 2:
        yield "how the time of a step changes with the workers: only one number is measured; run it with another"
    if known.total_steps is None:
        yield "the number of steps: `airflow-elastic plan --steps N` gives it, or the script (`total_steps`)"
    if known.save_seconds is None:
        yield "the cost of a save: no checkpoint was measured"
    if known.start_seconds is None:
        yield "the time of a start: no start was measured"


def _with_changes(spec: RunSpec, known: Known, curve: Fit, found: Plan) -> Plan:
    return replace(found, changes=tuple(_changes(spec, known, curve, found)))


def _changes(spec: RunSpec, known: Known, curve: Fit, found: Plan) -> Iterator[str]:
    by_number = {one.workers: one for one in found.options}
    best = by_number[found.recommended or found.workers]
    now = by_number[found.workers]
    if best.workers != now.workers and spec.scaling_policy is None:
        yield (
            f"workers.count: {best.workers} instead of {now.workers} makes a step "
            f"{now.step_seconds / best.step_seconds:.2f} times as fast"
        )
    beyond = [one for one in found.options if not one.allowed and one.workers > spec.workers.at_most]
    for one in beyond[-1:]:
        yield (
            f"workers.max: with {one.workers} a step would be {best.step_seconds / one.step_seconds:.2f} times as fast"
        )
    ideal, interval = found.interval_seconds, found.interval_now
    known_both = ideal is not None and interval is not None and not spec.checkpoint.auto_interval
    if known_both and ideal and interval and max(interval / ideal, ideal / interval) > OFF:
        yield f"checkpoint.every_seconds: {ideal:.0f} instead of {interval:.3g}, or checkpoint.auto_interval"
    shares = {one.name: one.share for one in found.parts}
    if shares.get("synchronisation", 0.0) >= LARGE:
        yield f"a faster network, or larger steps: {shares['synchronisation']:.0%} of the time is synchronisation"
    if shares.get("data", 0.0) >= LARGE:
        use = f"GPUs compute in {known.gpu_use:.0%} of the time" if known.gpu_use is not None else "GPUs wait"
        cpu = f", a worker uses {known.cpu_use:.1f} processors" if known.cpu_use is not None else ""
        yield f"faster data: more processors or more loading processes; {use}{cpu}"
    if shares.get("starting", 0.0) >= LARGE:
        yield f"shorter starts: {shares['starting']:.0%} of the time is the start, {known.start_seconds or 0:.0f} s"
    if shares.get("failing", 0.0) >= LARGE:
        yield f"fewer failures: {shares['failing']:.0%} of the time is repeated work and starts after failures"
    if len(curve.sizes) < 2:
        yield "a second measured number of workers: then the plan can compare them"
