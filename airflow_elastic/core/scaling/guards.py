"""Why a wanted number of workers is not asked for now: pauses, sizes that did not work, and steps that do not pay."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_elastic.core.scaling.throughput import Fit
from airflow_elastic.core.scaling.want import Want, workers_text
from airflow_elastic.spec.scaling.observation import Decision, Observation
from airflow_elastic.spec.scaling.policy import ScalingPolicy

#: If the end is unknown, a run is taken to last for as long again as it has, and at least for so many seconds.
LEAST_HORIZON_SECONDS = 600.0


def guarded(
    policy: ScalingPolicy, possible: Sequence[int], seen: Observation, curve: Fit | None, want: Want
) -> Decision:
    """The decision: the wanted number, or the guard that keeps the run from it now."""
    want = _reachable(possible, seen, want)
    if want.workers == seen.workers:
        return Decision(seen.workers, False, want.rule, want.reason, want.workers, want.figures)
    for name, reason, figures in (_pause(policy, seen, want), _payback(policy, seen, curve, want)):
        if name:
            text = f"{reason}; wanted: {workers_text(want.workers)}, {want.reason}"
            return Decision(seen.workers, False, name, text, want.workers, {**want.figures, **figures})
    figures = {**want.figures, **_worth(seen, curve, want)}
    return Decision(want.workers, True, want.rule, want.reason, want.workers, figures)


def _reachable(possible: Sequence[int], seen: Observation, want: Want) -> Want:
    """The wanted number, or the next smaller one if a step to it has failed lately."""
    if want.workers <= seen.workers or want.workers not in seen.too_many:
        return want
    lower = [n for n in possible if seen.workers < n < want.workers and n not in seen.too_many]
    reason = f"a step to {want.workers} has failed lately ({want.reason})"
    return Want(want.rule, max(lower, default=seen.workers), reason, want.figures)


_Guard = tuple[str, str, dict[str, float]]


def _pause(policy: ScalingPolicy, seen: Observation, want: Want) -> _Guard:
    cooldown = policy.up_seconds if want.workers > seen.workers else policy.down_seconds
    for name, since, pause, text in (
        ("snooze", seen.failed_at, policy.snooze_seconds, "the last failure"),
        ("snooze", seen.asked_at, policy.snooze_seconds, "a person's request"),
        ("cooldown", seen.changed_at, cooldown, "the last change"),
    ):
        if since is not None and seen.at - since < pause:
            past = max(0.0, seen.at - since)
            return name, f"only {past:.0f} of {pause:g} s have passed since {text}", {"since": past}
    return "", "", {}


def _payback(policy: ScalingPolicy, seen: Observation, curve: Fit | None, want: Want) -> _Guard:
    if not policy.must_pay or curve is None:
        return "", "", {}
    figures = _worth(seen, curve, want)
    saved, cost = figures["saved_seconds"], figures["cost_seconds"]
    if saved > cost:
        return "", "", {}
    what = "seconds" if want.workers > seen.workers else "worker seconds"
    return "payback", f"the step would save {max(0.0, saved):.0f} {what} and cost {cost:.0f}", figures


def _worth(seen: Observation, curve: Fit | None, want: Want) -> dict[str, float]:
    """What a step saves and costs until the expected end. Growth: seconds of the run; shrinking: of workers."""
    if curve is None:
        return {}
    now, then = curve.step_seconds(seen.workers), curve.step_seconds(want.workers)
    if seen.total_steps is None:
        left = max(LEAST_HORIZON_SECONDS, seen.at - seen.opened_at)
    else:
        left = max(0, seen.total_steps - seen.step) * now
    if want.workers > seen.workers:
        return {"saved_seconds": left * (1 - then / now), "cost_seconds": seen.cost_seconds}
    freed = left * (seen.workers - want.workers)
    return {"saved_seconds": freed, "cost_seconds": seen.cost_seconds * want.workers}
