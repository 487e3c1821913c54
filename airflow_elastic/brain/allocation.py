"""Shares of a capacity, as one row that controllers replace by compare-and-set: so none of them has to lead.

Each controller writes what its run asks for, and computes the shares of all runs from the same row. A controller that
dies between reading and writing has changed nothing. One that is gone for `CLAIM_SECONDS` does not count any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite

from airflow_elastic.brain.errors import BrainUnreachable
from airflow_elastic.brain.tables import AllocationRow
from airflow_elastic.core.brain.shares import Claim, shares, words
from airflow_elastic.core.scaling.throughput import fit
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.scaling.observation import Share, Speed

if TYPE_CHECKING:
    from sqlalchemy import Executable
    from sqlalchemy.orm import Session

    from airflow_elastic.brain.database import Database

#: A claim that nobody has renewed for so long does not count.
CLAIM_SECONDS = 600.0

#: An unchanged claim is renewed after so long.
RENEW_SECONDS = 60.0

#: Each lost race means that somebody else has won one, so this many in a row are no accident.
_TRIES = 50


@dataclass(frozen=True, slots=True)
class Entry:
    """The claim of one run, as the row has it.

    Attributes:
        sizes: the numbers of workers that it may have.
        workers: how many it has; 0 if it has not begun.
        at: when its controller last said so, epoch seconds.
        since: when it first did.
        priority: higher ones come first.
        cost: units of the capacity that a worker takes.
        speeds: its measured step times.
        free: for how many further workers there was room then; None if the engine did not say.
    """

    sizes: tuple[int, ...]
    workers: int
    at: float
    since: float
    priority: int = 0
    cost: int = 1
    speeds: tuple[Speed, ...] = ()
    free: int | None = None

    def claim(self, run: str) -> Claim:
        """The same, for `core.brain.shares`."""
        curve = fit(self.speeds)
        return Claim(run, self.sizes, self.priority, self.cost, curve, self.workers > 0, self.since)


@dataclass(frozen=True, slots=True)
class Allocation:
    """What runs ask for of one capacity.

    Attributes:
        entries: by the URI of the run.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)

    def with_entry(self, run: str, entry: Entry) -> Allocation:
        """The same with this claim, and without those that are too old."""
        before, others = self.entries.get(run), self.newest(entry.at).entries
        since = before.since if before is not None else entry.since
        return Allocation({**others, run: replace(entry, since=since)})

    def newest(self, now: float) -> Allocation:
        """The same without the claims that are too old."""
        return Allocation({run: one for run, one in self.entries.items() if one.at >= now - CLAIM_SECONDS})

    @property
    def units(self) -> int | None:
        """The whole capacity: the workers of all runs, and the room when one of them last looked. None: unknown."""
        looked = [one for one in self.entries.values() if one.free is not None]
        if not looked:
            return None
        newest = max(looked, key=lambda one: one.at)
        taken = sum(one.workers * one.cost for one in self.entries.values())
        return taken + max(0, newest.free or 0) * newest.cost

    def shares(self) -> dict[str, Share]:
        """The share of each run; {} while the capacity is unknown."""
        units = self.units
        if units is None:
            return {}
        claims = [entry.claim(run) for run, entry in sorted(self.entries.items())]
        given = shares(claims, units)
        return {one.run: Share(given[one.run], words(one, given[one.run], claims, units)) for one in claims}


def read(database: Database, pool: str) -> tuple[int, Allocation]:
    """The version of a capacity's row, and what it says; version 0 where there is none."""
    with database.reading() as session:
        row = session.execute(
            select(AllocationRow.version, AllocationRow.document).where(AllocationRow.pool == pool)
        ).one_or_none()
    if row is None:
        return 0, Allocation()
    try:
        return row.version, decode(Allocation, row.document)
    except SpecError:  # of another release: its runs are unknown to this one, and will ask again
        return row.version, Allocation()


def pools(database: Database) -> tuple[str, ...]:
    """The names of all capacities that runs have asked for."""
    with database.reading() as session:
        return tuple(session.scalars(select(AllocationRow.pool).order_by(AllocationRow.pool)))


def change(
    database: Database, pool: str, now: float, changed: Callable[[Allocation], Allocation]
) -> Allocation:
    """Change a capacity's row, however many others do the same at this moment.

    Args:
        database: where it is.
        pool: the name of the capacity.
        now: epoch seconds.
        changed: from the present row to the wanted one. It may be called several times.

    Raises:
        BrainUnreachable: the database has failed, or others win all the time.
    """
    for _ in range(_TRIES):
        version, found = read(database, pool)
        wanted = changed(found)
        if wanted == found or write(database, pool, version, wanted, now):
            return wanted
    raise BrainUnreachable(f"others have changed the shares of {pool} each time, {_TRIES} times")


def write(database: Database, pool: str, version: int, wanted: Allocation, now: float) -> bool:
    """Replace a capacity's row if it still has this version. False: another process was faster."""
    document = encode(wanted)
    with database.writing() as session:
        if version == 0:
            kind = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
            values = {"pool": pool, "version": 1, "at": now, "document": document}
            begin = kind.insert(AllocationRow).values(**values).on_conflict_do_nothing()
            return _changed(session, begin)
        same = (AllocationRow.pool == pool, AllocationRow.version == version)
        statement = update(AllocationRow).where(*same).values(version=version + 1, at=now, document=document)
        return _changed(session, statement)


def ask(database: Database, pool: str, run: str, entry: Entry) -> Share | None:
    """Say what a run asks for of a capacity, and get its share; None while the capacity is unknown."""

    def claimed(found: Allocation) -> Allocation:
        before, new = found.entries.get(run), found.with_entry(run, entry)
        if before is None or set(new.entries) != set(found.entries):
            return new
        renewed = replace(before, at=entry.at, speeds=entry.speeds)
        quiet = renewed == new.entries[run] and entry.at - before.at < RENEW_SECONDS
        return found if quiet else new

    return change(database, pool, entry.at, claimed).shares().get(run)


def leave(database: Database, pool: str, runs: Iterable[str], now: float) -> None:
    """Remove the claims of runs that have ended."""
    gone = set(runs)

    def without(found: Allocation) -> Allocation:
        return Allocation({name: one for name, one in found.entries.items() if name not in gone})

    change(database, pool, now, without)


def _changed(session: Session, statement: Executable) -> bool:
    return bool(session.execute(statement).rowcount)  # type: ignore[attr-defined]
