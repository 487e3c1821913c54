"""The types of a history."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field


class HistoryUnreadable(ValueError):
    """An object is no history: it is damaged, or `newer`: a later release has written it."""

    def __init__(self, text: str, *, newer: bool = False) -> None:
        super().__init__(text)
        self.newer = newer


@dataclass(frozen=True, slots=True)
class Column:
    """One series: an item for each bucket of its table. `count` 0: no value in that bucket."""

    count: array[int] = field(default_factory=lambda: array("I"))
    min: array[float] = field(default_factory=lambda: array("d"))
    max: array[float] = field(default_factory=lambda: array("d"))
    mean: array[float] = field(default_factory=lambda: array("d"))


@dataclass(frozen=True, slots=True)
class Table:
    """Series with common buckets. `t`: the start of each bucket, epoch seconds, ascending."""

    t: array[float] = field(default_factory=lambda: array("d"))
    columns: Mapping[str, Column] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Matrix:
    """One number for each row, such as a worker, in each bucket of time.

    Attributes:
        rows: what the rows are: names of workers, or numbers of ranks.
        t: the start of each bucket, epoch seconds, ascending.
        count: how many values of time each bucket has.
        attempt: the highest attempt in each bucket.
        mean: bucket after bucket, the mean of each row; NaN where there is none.
        max: the same with the maximum.
    """

    rows: tuple[str, ...] = ()
    t: array[float] = field(default_factory=lambda: array("d"))
    count: array[int] = field(default_factory=lambda: array("I"))
    attempt: array[int] = field(default_factory=lambda: array("I"))
    mean: array[float] = field(default_factory=lambda: array("f"))
    max: array[float] = field(default_factory=lambda: array("f"))


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that lasted for a while.

    Attributes:
        kind: `waiting`, `straggler` or `trouble`.
        since: when it began, epoch seconds.
        until: when it ended; while it is open, when it was last seen.
        text: what it was, in a sentence.
        workers: names of the workers that it is about.
        ranks: numbers of the ranks that it is about.
        open: whether it had not ended when it was last seen.
    """

    kind: str
    since: float
    until: float
    text: str
    workers: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    open: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One stored object of a history, or what several of them say together.

    Attributes:
        writer: who wrote it, unique for each process; empty for an archive.
        at: when it was written, epoch seconds.
        attempt: the attempt that the writer belongs to; 0 where there is none.
        begun: for each attempt the start of its first bucket.
        includes: for each writer the time until which an archive includes what it has written.
        table: the series.
        matrices: by name, values of each worker or rank.
        conditions: oldest first.
    """

    writer: str = ""
    at: float = 0.0
    attempt: int = 0
    begun: Mapping[int, float] = field(default_factory=dict)
    includes: Mapping[str, float] = field(default_factory=dict)
    table: Table = field(default_factory=Table)
    matrices: Mapping[str, Matrix] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """The whole history of a run, as read at one moment.

    Attributes:
        at: when it was read, epoch seconds.
        training: what the lead agents have written.
        controller: what the controllers have written.
    """

    at: float
    training: Part = field(default_factory=Part)
    controller: Part = field(default_factory=Part)
