"""What lasted for a while: waits, stragglers, troubles. Joins what several controllers have noted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airflow_elastic.spec.history import Condition

#: The newest so many are kept.
MOST = 1000

#: Two of the same with a shorter pause between them are one: another controller went on to note it. Seconds.
PAUSE_SECONDS = 120.0


def joined_conditions(found: Iterable[Condition]) -> tuple[Condition, ...]:
    """All conditions, oldest first. The same one, noted several times or by several controllers, is one."""
    result: list[Condition] = []
    newest: dict[tuple[object, ...], int] = {}
    for one in sorted(found, key=lambda one: (one.since, one.until, not one.open)):
        key = (one.kind, one.text, one.workers, one.ranks)
        last = newest.get(key)
        if last is not None and one.since <= result[last].until + PAUSE_SECONDS:
            former = result[last]
            later = max(former, one, key=lambda item: (item.until, not item.open))
            result[last] = replace(former, until=later.until, open=later.open)
        else:
            newest[key] = len(result)
            result.append(one)
    return tuple(result[-MOST:])
