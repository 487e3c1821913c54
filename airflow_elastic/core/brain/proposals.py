"""Proposals for a run, from the facts about others that are alike. Each says on how many runs it rests.

Nothing is proposed without evidence: there are no built-in guesses. A value is proposed only if it differs enough from
the present one to matter, and never out of the bounds that are named here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_elastic.core.brain import amounts
from airflow_elastic.core.brain.evidence import of_kind, speeds_of
from airflow_elastic.core.brain.kind import batch_of
from airflow_elastic.core.brain.use import quantile
from airflow_elastic.core.checkpoints.save_interval import EXPECTED_SECONDS, save_interval
from airflow_elastic.core.scaling.throughput import fit
from airflow_elastic.core.scaling.worth import BEYOND
from airflow_elastic.core.units import size
from airflow_elastic.spec.brain.proposal import Proposal

if TYPE_CHECKING:
    from airflow_elastic.core.brain.facts import Facts
    from airflow_elastic.spec.run import RunSpec

#: A further worker must add at least this share of what a worker gives on average, unless the policy says another.
EFFICIENCY = 0.5

#: Over the quantile of what workers have used.
MARGIN = 1.2

#: Of runs that ran out of memory, the next one gets so many times what they had.
AFTER_OUT_OF_MEMORY = 1.5

#: An amount of a resource changes by these factors at most.
LEAST_FACTOR, MOST_FACTOR = 0.25, 4.0

#: A limit is so many times the longest time that was seen.
START_FACTOR, PAUSE_FACTOR = 3.0, 5.0

#: Limits are between these, in seconds.
SHORTEST_LIMIT, LONGEST_LIMIT = 120.0, 86_400.0

#: A limit is lowered only after so many runs: one lucky run proves little. It is raised after one.
RUNS_TO_LOWER = 2

#: What differs by less is no proposal.
MATTERS = 0.2


def proposals(spec: RunSpec, known: Sequence[Facts]) -> tuple[Proposal, ...]:
    """What past runs propose for a run, in the order of the specification; () if nothing is known of runs like it.

    Args:
        spec: the run.
        known: facts about runs. Those of another kind do not count.
    """
    alike = of_kind(spec, known)
    if not alike:
        return ()
    found = (
        *_workers(spec, alike),
        *_resources(spec, alike),
        *_interval(spec, alike),
        *_limits(spec, alike),
        *_batch(spec, alike),
    )
    return tuple(found)


def _workers(spec: RunSpec, alike: Sequence[Facts]) -> Iterator[Proposal]:
    """The most workers while each still adds enough, and no more than twice as many as were ever measured."""
    workers, policy = spec.workers, spec.scaling_policy
    speeds, runs = speeds_of(spec, alike)
    curve = fit(speeds)
    if workers.at_least == workers.at_most or curve is None or len(curve.sizes) < 2:
        return  # of one number alone, the shape of the curve would be a guess
    needed = policy.worth.efficiency if policy is not None and policy.worth is not None else EFFICIENCY
    most = min(workers.at_most, BEYOND * curve.sizes[-1])
    best = workers.at_least
    for count in range(workers.at_least + workers.node_unit, most + 1, workers.node_unit):
        if curve.marginal(best, count) < needed:
            break
        best = count
    if best == workers.count:
        return
    reason = (
        f"with {best} a step takes {curve.step_seconds(best):.3g} s, with {workers.count} "
        f"{curve.step_seconds(workers.count):.3g} s; each worker up to there adds at least {needed:.0%} of the average"
    )
    figures = {
        "step_seconds": curve.step_seconds(best),
        "step_seconds_now": curve.step_seconds(workers.count),
        "spread": curve.spread,
        "sizes": float(len(curve.sizes)),
    }
    yield Proposal("workers.count", best, reason, runs, workers.count, figures)


def _resources(spec: RunSpec, alike: Sequence[Facts]) -> Iterator[Proposal]:
    """Processors and memory of a worker: the 0.95 quantile over the runs, with a margin."""
    for name, signal in (("cpu", "cpu"), ("memory", "memory_bytes")):
        used = [(one, use) for one in alike for use in one.uses if use.signal == signal]
        if not used:
            continue
        # A worker waits for a processor, but dies without memory: of memory, the highest value of each run counts.
        values = [use.peak if name == "memory" else use.p95 for _, use in used]
        typical = quantile([(value, 1.0) for value in values], 0.95)
        if typical <= 0:
            continue
        wanted, shown = typical * MARGIN, size(typical) if name == "memory" else f"{typical:.2f} processors"
        reason = f"in 95 % of the runs a worker used at most {shown}; with {MARGIN - 1:.0%} more"
        figures = {"used": typical, "margin": MARGIN, "samples": float(sum(use.samples for _, use in used))}
        if name == "memory" and (lacked := _lacked(alike)):
            if AFTER_OUT_OF_MEMORY * lacked > wanted:
                wanted = AFTER_OUT_OF_MEMORY * lacked
                reason = (
                    f"with {size(lacked)} a worker ran out of memory; {AFTER_OUT_OF_MEMORY:g} times as much"
                )
            figures["lacked"] = lacked
        text = spec.workers.resources.get(name)
        given = None if text is None else amounts.amount(text)
        if given is not None and given > 0:
            wanted = min(max(wanted, LEAST_FACTOR * given), MOST_FACTOR * given)
            if abs(wanted / given - 1) < MATTERS:
                continue
        value = amounts.memory(wanted) if name == "memory" else amounts.processors(wanted)
        if value == text:
            continue
        yield Proposal(f"workers.resources.{name}", value, reason, len(used), text, figures)


def _lacked(alike: Sequence[Facts]) -> float | None:
    """The most memory with which a run of this kind ran out of it."""
    known = [amounts.amount(one.resources.get("memory")) for one in alike if one.timing.out_of_memory]
    return max((value for value in known if value is not None), default=None)


def _interval(spec: RunSpec, alike: Sequence[Facts]) -> Iterator[Proposal]:
    """The time between two saves, by what a save costs and how often workers fail."""
    policy = spec.checkpoint
    measured = [one for one in alike if one.timing.save_seconds is not None]
    if policy.auto_interval or policy.every_steps is not None or policy.seconds is None or not measured:
        return
    cost = sum((one.timing.save_seconds or 0.0) * one.timing.saves for one in measured)
    cost /= sum(one.timing.saves for one in measured)
    written = max((one.timing.written_seconds or 0.0 for one in measured), default=0.0)
    count = spec.workers.count
    hours = sum(one.timing.worker_hours for one in alike)
    failures = sum(one.timing.failures for one in alike)
    # Each worker fails by itself; without much experience, the assumption of `save_interval` has its weight.
    between = (hours * 3600.0 / count + EXPECTED_SECONDS) / (failures + 1)
    best = save_interval(cost, written, between)
    seconds = float(round(best.seconds))
    if abs(seconds / policy.seconds - 1) < MATTERS:
        return
    reason = f"{best.reason}: {failures} in {hours:.1f} hours of a worker"
    figures = {"save_seconds": cost, "written_seconds": written, "between_failures": between, "hours": hours}
    figures["failures"] = float(failures)
    yield Proposal("checkpoint.every_seconds", seconds, reason, len(measured), policy.seconds, figures)


def _limits(spec: RunSpec, alike: Sequence[Facts]) -> Iterator[Proposal]:
    """Which silence counts as a failure."""
    health = spec.health
    starts = [
        one.timing.longest_start_seconds for one in alike if one.timing.longest_start_seconds is not None
    ]
    pauses = [one.timing.pause_seconds for one in alike if one.timing.pause_seconds is not None]
    # As for a start within a run: another machine may have to fetch an image or compile first.
    more = health.no_progress_seconds
    for name, seen, factor, extra, now, words in (
        ("start_seconds", starts, START_FACTOR, more, health.start_seconds, "start"),
        (
            "no_progress_seconds",
            pauses,
            PAUSE_FACTOR,
            0.0,
            health.no_progress_seconds,
            "time between two steps",
        ),
    ):
        if not seen:
            continue
        longest = max(seen)
        value = float(round(min(max(factor * longest + extra, SHORTEST_LIMIT), LONGEST_LIMIT)))
        if abs(value / now - 1) < MATTERS or (value < now and len(seen) < RUNS_TO_LOWER):
            continue
        plus = f" and {extra:g} s" if extra else ""
        reason = f"the longest {words} took {longest:.3g} s; the limit is {factor:g} times that{plus}"
        if value == SHORTEST_LIMIT:
            reason = f"the longest {words} took {longest:.3g} s; a limit is at least {SHORTEST_LIMIT:g} s"
        figures = {"longest": longest, "factor": factor}
        yield Proposal(f"health.{name}", value, reason, len(seen), now, figures)


def _batch(spec: RunSpec, alike: Sequence[Facts]) -> Iterator[Proposal]:
    """The batch of a rank with which a rank processed the most samples. It changes what is trained: only a hint."""
    now = batch_of(spec.command)
    if now is None:
        return
    best: dict[int, tuple[float, int]] = {}
    for one in alike:
        if (
            one.batch is None
            or one.batch[0] != now[0]
            or one.samples_per_second <= 0
            or one.timing.out_of_memory
        ):
            continue
        rate = one.samples_per_second / (one.workers * one.procs)
        before, runs = best.get(one.batch[1], (0.0, 0))
        best[one.batch[1]] = max(rate, before), runs + 1
    if now[1] not in best:
        return
    batch, (rate, _) = max(best.items(), key=lambda item: (item[1][0], -item[0]))
    if batch == now[1] or rate < (1 + MATTERS) * best[now[1]][0]:
        return
    reason = (
        f"with {batch}, a rank processed {rate:.3g} samples a second, with {now[1]} {best[now[1]][0]:.3g}; "
        "it changes the training, so decide yourself"
    )
    runs = sum(count for _, count in best.values())
    figures = {"rate": rate, "rate_now": best[now[1]][0]}
    yield Proposal(f"command {now[0]}", batch, reason, runs, now[1], figures)
