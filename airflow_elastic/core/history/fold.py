"""Several stored parts as one: an archive, and what writers have added since.

A writer folds the newest archive and recent parts into the next archive. A reader does the same in memory. Nothing is
counted twice: an archive says until when it includes what a writer has written. If two attempts overlap in time, only
the later one counts there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from airflow_elastic.core.history import matrices, tables
from airflow_elastic.core.history.join_conditions import joined_conditions
from airflow_elastic.core.history.retention import MINUTE
from airflow_elastic.spec.history import Column, Part, Table

#: Of writers and attempts, an archive remembers so many of the newest ones.
MOST_WRITERS, MOST_ATTEMPTS = 256, 1000

#: The name of the series by which an archive knows which attempt a bucket belongs to.
ATTEMPT = "attempt"


def fold(archive: Part, recent: Sequence[Part], cuts: Mapping[str, float] | None = None) -> Part:
    """One part with everything in these parts.

    Args:
        archive: the newest archive; an empty part where there is none.
        recent: parts of writers, also those that the archive includes already.
        cuts: for each writer the time until which its part is taken, a whole minute; others are left out. The result
            then includes them until that time. None: take all of all, for a reader.
    """
    begun = _begun([archive, *recent])
    parts = counting(archive, recent, cuts)
    names = dict.fromkeys(name for part in parts for name in part.matrices)
    return Part(
        at=max(part.at for part in parts),
        begun=dict(sorted(begun.items())[-MOST_ATTEMPTS:]),
        includes=_included(archive.includes, cuts or {}),
        table=tables.joined_with_age([part.table for part in parts]),
        matrices={
            name: matrices.joined_with_age([part.matrices[name] for part in parts if name in part.matrices])
            for name in names
        },
        conditions=joined_conditions(condition for part in parts for condition in part.conditions),
    )


def counting(archive: Part, recent: Sequence[Part], cuts: Mapping[str, float] | None = None) -> list[Part]:
    """What counts of each part, as in `fold`, but not joined: it has the buckets of the parts."""
    begun = _begun([archive, *recent])
    fresh = [
        _between(part, archive.includes.get(part.writer, -math.inf), _cut(part.writer, cuts), begun)
        for part in recent
        if cuts is None or part.writer in cuts
    ]
    old = archive if begun == dict(archive.begun) else _without_overlap(archive, begun)
    return [old, *fresh]


def only(part: Part, series: Callable[[str], bool], matrix: str = "") -> Part:
    """The part with some of its series and at most one matrix: to join all of them takes ten times as long.

    Args:
        part: as it is stored.
        series: whether a name is wanted. The attempts stay, by which it is known what counts.
        matrix: its name.
    """
    columns = {name: one for name, one in part.table.columns.items() if name == ATTEMPT or series(name)}
    rows = {name: one for name, one in part.matrices.items() if name == matrix}
    return replace(part, table=Table(part.table.t, columns), matrices=rows)


def cut_of(part: Part) -> float:
    """The first whole minute after everything that a part has: its cut, if its writer is dead."""
    newest = max(
        [*part.table.t[-1:], *(at for one in part.matrices.values() for at in one.t[-1:])], default=0.0
    )
    return whole_minute(newest) + MINUTE


def whole_minute(t: float) -> float:
    """The start of the minute of a time."""
    return math.floor(t / MINUTE) * MINUTE


def rest_of(part: Part, cut: float) -> Part:
    """What is left of a writer's part once it is folded until `cut`."""
    return _between(part, cut, math.inf, {})


def _cut(writer: str, cuts: Mapping[str, float] | None) -> float:
    return math.inf if cuts is None else cuts[writer]


def _begun(parts: Iterable[Part]) -> dict[int, float]:
    """When each attempt began, by its first bucket."""
    found: dict[int, float] = {}
    for part in parts:
        for number, at in part.begun.items():
            found[number] = min(at, found.get(number, math.inf))
    return found


def _limit(attempt: int, begun: Mapping[int, float]) -> float:
    """From when on a later attempt counts."""
    return min((at for number, at in begun.items() if number > attempt), default=math.inf)


def _between(part: Part, since: float, until: float, begun: Mapping[int, float]) -> Part:
    """A writer's buckets that begin in a time, without those that a later attempt has as well."""
    until = min(until, _limit(part.attempt, begun)) if part.attempt else until
    return Part(
        writer=part.writer,
        at=part.at,
        attempt=part.attempt,
        begun=part.begun,
        table=tables.between(part.table, since, until),
        matrices={name: matrices.between(one, since, until) for name, one in part.matrices.items()},
        conditions=part.conditions,
    )


def _without_overlap(archive: Part, begun: Mapping[int, float]) -> Part:
    """The archive without the buckets of attempts that went on when a later one had begun."""
    limits = {number: _limit(number, begun) for number in begun}

    def counts(t: float, attempt: float) -> bool:
        return t < limits.get(int(attempt), math.inf)

    table, column = archive.table, archive.table.columns.get(ATTEMPT, Column())
    numbers = zip(table.t, column.count, column.max, strict=False)
    return replace(
        archive,
        table=tables.kept(table, [not count or counts(t, attempt) for t, count, attempt in numbers]),
        matrices={
            name: matrices.kept(
                one, [counts(t, attempt) for t, attempt in zip(one.t, one.attempt, strict=True)]
            )
            for name, one in archive.matrices.items()
        },
    )


def _included(before: Mapping[str, float], cuts: Mapping[str, float]) -> dict[str, float]:
    """Until when each writer is included; of many writers only those that were last."""
    both = {**before, **{name: max(cut, before.get(name, cut)) for name, cut in cuts.items()}}
    return dict(sorted(both.items(), key=lambda item: (item[1], item[0]))[-MOST_WRITERS:])
