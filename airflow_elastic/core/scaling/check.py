"""Checks of a policy before anything starts, beyond those of the specification itself."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from airflow_elastic.core.scaling.schedule import deadline_of
from airflow_elastic.spec.errors import Problem, SpecError

if TYPE_CHECKING:
    from airflow_elastic.spec.run import RunSpec


def check(spec: RunSpec, now: float | None = None) -> None:
    """Refuse a time zone that does not exist, a cron expression that is none, and a deadline that has passed.

    Args:
        spec: of a run that is about to be created.
        now: epoch seconds; None: a deadline may have passed, as while a DAG is parsed.

    Raises:
        SpecError: with all problems.
    """
    policy = spec.scaling_policy
    if policy is None:
        return
    problems = []
    zone = _is_zone(policy.timezone)
    if not zone:
        problems.append(Problem("scaling.policy.timezone", policy.timezone, "a name such as Europe/Berlin"))
    for i, window in enumerate(policy.windows):
        for name in ("start", "end"):
            text = getattr(window, name)
            if (allowed := _no_moment(text)) is not None:
                problems.append(Problem(f"scaling.policy.windows.{i}.{name}", text, allowed))
    if zone and policy.done_by is not None:
        try:
            by = deadline_of(policy, now or 0.0)
        except ValueError:
            by = None
        if by is None or (now is not None and by <= now):
            allowed = "a moment to come, as `06:00` or `2027-01-31T06:00`"
            problems.append(Problem("scaling.policy.done_by", policy.done_by, allowed))
    if problems:
        raise SpecError(*problems)


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _no_moment(text: str) -> str | None:
    """What is allowed in place of a cron expression that has no moment; None if it has one."""
    from croniter import CroniterBadDateError, croniter  # it takes longer to import than all of the core

    if not croniter.is_valid(text):
        return "a cron expression of five fields, such as `0 20 * * *`"
    try:
        croniter(text, 0.0).get_next(float)
    except CroniterBadDateError:
        return "a cron expression whose time comes, such as `0 20 * * *`"
    return None
