"""The rules that know the time: `windows`, `done_by`, and the budget `gpu_hours`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from airflow_elastic.core.scaling.throughput import Fit
from airflow_elastic.core.scaling.want import Want, at_most, workers_text
from airflow_elastic.spec.scaling.observation import Observation
from airflow_elastic.spec.scaling.policy import ScalingPolicy, Window
from airflow_elastic.spec.scaling.workers import Workers

#: Of a budget whose end cannot be foreseen, the share after which the run goes on with its fewest workers.
ALMOST_USED = 0.9


def window(policy: ScalingPolicy, workers: Workers, sizes: Sequence[int], seen: Observation) -> Want | None:
    """The number of workers of the window that is open now; outside of all, `workers.count`."""
    if not policy.windows:
        return None
    for one in policy.windows:
        if is_open(one, policy.timezone, seen.at):
            return Want("window", one.workers, f"from {one.start!r} to {one.end!r} it has {one.workers}")
    count = at_most(sizes, workers.count)
    return Want("window", count, f"outside of all windows it has {count}")


def is_open(one: Window, timezone: str, at: float) -> bool:
    """Whether the moment is in the window: it began more recently than it ended."""
    return _before(one.start, timezone, int(at // 60)) > _before(one.end, timezone, int(at // 60))


@lru_cache(maxsize=1024)
def _before(cron: str, timezone: str, minute: int) -> float:
    """The last moment of a cron expression up to this minute, epoch seconds."""
    from croniter import croniter  # it takes longer to import than all of the core

    moment = datetime.fromtimestamp(60.0 * minute + 1, tz=ZoneInfo(timezone))
    return float(croniter(cron, moment).get_prev(float))


def deadline_of(policy: ScalingPolicy, opened_at: float) -> float | None:
    """The moment of `done_by`, epoch seconds. A time of day is the next one after the run was opened."""
    if policy.done_by is None:
        return None
    zone = ZoneInfo(policy.timezone)
    if len(policy.done_by) == len("06:00"):
        hour, minute = map(int, policy.done_by.split(":"))
        begun = datetime.fromtimestamp(opened_at, tz=zone)
        moment = begun.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return (moment if moment > begun else moment + timedelta(days=1)).timestamp()
    moment = datetime.fromisoformat(policy.done_by.replace("Z", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()


def deadline(
    policy: ScalingPolicy, sizes: Sequence[int], seen: Observation, curve: Fit | None
) -> Want | None:
    """The fewest workers that make it in time, with the margin; the fastest number if none does."""
    by = deadline_of(policy, seen.opened_at)
    if by is None:
        return None
    at = datetime.fromtimestamp(by, tz=ZoneInfo(policy.timezone)).strftime("%Y-%m-%d %H:%M")
    if seen.total_steps is None:
        return Want("deadline", seen.workers, "the script does not say how many steps there are")
    if curve is None:
        return Want("deadline", seen.workers, "no step has been measured yet")
    left, steps = by - seen.at, max(0, seen.total_steps - seen.step)

    def seconds(size: int) -> float:
        return steps * curve.step_seconds(size) + (seen.cost_seconds if size != seen.workers else 0.0)

    for size in sizes:
        # A run shrinks only with some room to spare, so that it need not grow again.
        slack = policy.done_margin + (
            policy.tolerance * (1 - policy.done_margin) if size < seen.workers else 0
        )
        if seconds(size) <= left * (1 - slack):
            spare = left - seconds(size)
            reason = f"with {size} it is done {_length(spare)} before {at}"
            return Want("deadline", size, reason, {"seconds": seconds(size), "left": left, "spare": spare})
    fastest = min(sizes, key=lambda size: (seconds(size), size))
    over = seconds(fastest) - left
    late = f"{_length(over)} after" if over > 0 else f"{_length(-over)} before"
    reason = f"no number of workers keeps the margin; {fastest} are the fastest, done {late} {at}"
    return Want("deadline", fastest, reason, {"seconds": seconds(fastest), "left": left, "spare": -over})


def budget(policy: ScalingPolicy, sizes: Sequence[int], seen: Observation, curve: Fit | None) -> Want | None:
    """The most workers with which the rest of `gpu_hours` suffices; the fewest if none does."""
    if policy.gpu_hours is None:
        return None
    left = policy.gpu_hours - seen.used_gpu_hours
    figures = {"gpu_hours": policy.gpu_hours, "used": seen.used_gpu_hours}
    used = f"{seen.used_gpu_hours:.1f} of {policy.gpu_hours:g} GPU hours are used"
    if seen.total_steps is None or curve is None:
        if left > (1 - ALMOST_USED) * policy.gpu_hours:
            return Want("budget", sizes[-1], used, figures)
        return Want("budget", sizes[0], f"{used}, and the end is unknown", figures)
    steps = max(0, seen.total_steps - seen.step)

    def hours(size: int) -> float:
        seconds = steps * curve.step_seconds(size) + (seen.cost_seconds if size != seen.workers else 0.0)
        return seconds * size * seen.procs / 3600.0

    fit = [size for size in sizes if hours(size) <= left]
    if fit:
        return Want(
            "budget", fit[-1], f"{used}, {workers_text(fit[-1])} need {hours(fit[-1]):.1f} more", figures
        )
    cheapest = min(sizes, key=lambda size: (hours(size), size))
    reason = f"{used}; {workers_text(cheapest)} need the least, {hours(cheapest):.1f} more, which is over the budget"
    return Want("budget", cheapest, reason, figures)


def _length(seconds: float) -> str:
    minutes = round(abs(seconds) / 60)
    return f"{abs(seconds):.0f} s" if minutes < 2 else f"{minutes // 60} h {minutes % 60:02d} min"
