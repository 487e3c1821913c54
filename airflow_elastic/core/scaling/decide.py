"""How many workers a run should have: the one function that decides, and its guards.

Some rules ask for a number of workers; the highest counts. Some limit it; the lowest counts. `_rules` has both lists.
Guards then say whether the step is made now. Room that others need
is given back past the guards, except that there are never two steps at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_elastic.core.scaling import capacity, load, schedule, worth
from airflow_elastic.core.scaling.guards import guarded
from airflow_elastic.core.scaling.throughput import Fit, best_known, fit
from airflow_elastic.core.scaling.want import Want, at_most
from airflow_elastic.spec.scaling.form import sizes
from airflow_elastic.spec.scaling.observation import FALLBACK, Decision, Observation
from airflow_elastic.spec.scaling.policy import ScalingPolicy
from airflow_elastic.spec.scaling.workers import Workers


def decide(policy: ScalingPolicy, workers: Workers, seen: Observation) -> Decision:
    """The number of workers that the run should have, and whether that is a step to make now.

    Args:
        policy: the rules.
        workers: the limits, from the specification.
        seen: what is known at this moment.
    """
    possible = sizes(policy, workers)
    curve = fit(best_known(seen.speeds, seen.learnt))
    if (back := _fallback(policy, possible, seen)) is not None:
        return back
    if seen.busy is not None:
        return Decision(seen.workers, False, "busy", seen.busy, seen.workers)
    if (forced := _forced(policy, possible, seen)) is not None:
        acts = forced.workers < seen.workers
        return Decision(forced.workers, acts, forced.rule, forced.reason, forced.workers, forced.figures)
    return guarded(policy, possible, seen, curve, wanted(policy, workers, possible, seen, curve))


def wanted(
    policy: ScalingPolicy, workers: Workers, possible: Sequence[int], seen: Observation, curve: Fit | None
) -> Want:
    """What all rules together want, whether or not a step may be made now."""
    asks, limits = _rules(policy, workers, possible, seen, curve)
    # The number that the run has may be none that the policy would choose: a person has asked for it.
    unchanged = Want("steady", seen.workers, "no rule asks for another number of workers")
    asked = max(asks, key=lambda want: want.workers, default=unchanged)
    limit = min(limits, key=lambda want: want.workers, default=None)
    if limit is not None and limit.workers < asked.workers:
        both = asked.rule in ("steady", limit.rule)
        reason = limit.reason if both else f"{limit.reason} ({asked.rule} asks for {asked.workers})"
        asked = Want(limit.rule, limit.workers, reason, {**asked.figures, **limit.figures})
    return asked


def _fallback(policy: ScalingPolicy, possible: Sequence[int], seen: Observation) -> Decision | None:
    """Back to the workers that are there, if others have not come for twice `up_seconds`."""
    if not seen.held or seen.held_seconds < 2 * policy.up_seconds or seen.workers - seen.held < possible[0]:
        return None
    there = at_most(possible, seen.workers - seen.held)
    reason = f"{seen.held} of {seen.workers} workers have not come for {seen.held_seconds:.0f} s"
    return Decision(there, True, FALLBACK, reason, there, {"held": float(seen.held)})


def _forced(policy: ScalingPolicy, possible: Sequence[int], seen: Observation) -> Want | None:
    """A shrinking that does not wait: for work of a higher priority, or because the share of the capacity is less."""
    found = []
    if (
        policy.capacity is not None
        and (back := capacity.give_back(policy.capacity, possible, seen)) is not None
    ):
        found.append(back)
    if (
        seen.share is not None
        and (share := _share(possible, seen)) is not None
        and share.workers < seen.workers
    ):
        found.append(share)
    lower = [want for want in found if want.workers < seen.workers]
    return min(lower, key=lambda want: want.workers, default=None)


def _rules(
    policy: ScalingPolicy, workers: Workers, possible: Sequence[int], seen: Observation, curve: Fit | None
) -> tuple[list[Want], list[Want]]:
    """The numbers that rules ask for, and the most that rules allow."""
    asks: list[Want] = list(load.wants(policy, possible, seen))
    limits: list[Want] = []
    if (window := schedule.window(policy, workers, possible, seen)) is not None:
        asks.append(window)
        limits.append(window)
    if (deadline := schedule.deadline(policy, possible, seen, curve)) is not None:
        asks.append(deadline)
    if (share := _share(possible, seen)) is not None:
        asks.append(share)
        limits.append(share)
    if (budget := schedule.budget(policy, possible, seen, curve)) is not None:
        limits.append(budget)
    worthwhile = None
    if policy.worth is not None and curve is not None:
        worthwhile = worth.worthwhile(policy.worth, possible, seen, curve)
        limits.append(worthwhile)
    if policy.capacity is not None and (room := capacity.room(policy.capacity, possible, seen)) is not None:
        limits.append(room)
        if not policy.load:  # free room alone is a reason to grow, unless the load says how much is needed
            asks.insert(0, room)  # of equal numbers its reason counts: more room is what would change it
    elif worthwhile is not None and not asks:
        asks.append(worthwhile)
    return asks, limits


def _share(possible: Sequence[int], seen: Observation) -> Want | None:
    if seen.share is None:
        return None
    size = at_most(possible, seen.share.workers)
    return Want("share", size, seen.share.reason, {"share": float(seen.share.workers)})
