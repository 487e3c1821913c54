"""What a writer of the history holds in memory: everything since its last fold."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import replace

from airflow_elastic.core.history import matrices
from airflow_elastic.core.history.fold import rest_of
from airflow_elastic.core.history.join_conditions import joined_conditions
from airflow_elastic.core.history.retention import MATRIX, SERIES
from airflow_elastic.core.history.tables import TableBuilder, joined_with_age
from airflow_elastic.spec.history import Column, Condition, Matrix, Part, Table

#: With so many buckets, old ones are joined.
_MANY_BUCKETS, _MANY_COLUMNS = 2400, 300

#: The most series. Further ones are left out: a script that makes up a name for each step must not fill the storage.
MOST_SERIES = 300


class Recorder:
    """Collects numbers of one writer.

    Args:
        writer: names it, unlike any other.
        attempt: the attempt that it belongs to; 0 where there is none.
    """

    def __init__(self, writer: str, attempt: int = 0) -> None:
        self.writer, self.attempt = writer, attempt
        self._begun: dict[int, float] = {}
        self._series = TableBuilder()
        self._matrices: dict[str, Matrix] = {}
        self._conditions: tuple[Condition, ...] = ()

    def add(self, t: float, values: Mapping[str, float]) -> None:
        """Add a value of each series, at a time (epoch seconds)."""
        if not values:
            return
        self._begin(t)
        self._series.add(t, values, most=MOST_SERIES)
        if len(self._series) > _MANY_BUCKETS:
            self._series = TableBuilder(joined_with_age([self._series.table], SERIES))

    def add_rows(self, name: str, t: float, values: Mapping[str, float]) -> None:
        """Add a number of each worker or rank, at a time (epoch seconds)."""
        if not values:
            return
        self._begin(t)
        grown = matrices.add(self._matrices.get(name, Matrix()), t, values, self.attempt)
        self._matrices[name] = (
            matrices.joined_with_age([grown], MATRIX) if len(grown.t) > _MANY_COLUMNS else grown
        )

    def note(self, *conditions: Condition) -> None:
        """Note conditions, also ones that were noted before and last longer now."""
        self._conditions = joined_conditions((*self._conditions, *conditions))

    def part(self, now: float) -> Part:
        """Everything, as it is stored. It does not change any more."""
        table = self._series.table
        return Part(
            writer=self.writer,
            at=now,
            attempt=self.attempt,
            begun=dict(self._begun),
            table=Table(table.t[:], {name: _copy(column) for name, column in table.columns.items()}),
            matrices={name: _copy_of(one) for name, one in self._matrices.items()},
            conditions=self._conditions,
        )

    def forget(self, cut: float) -> None:
        """Forget what began before `cut`, because an archive has it."""
        rest = rest_of(self.part(0.0), cut)
        self._series, self._matrices = TableBuilder(rest.table), dict(rest.matrices)
        self._conditions = tuple(one for one in self._conditions if one.open or one.until >= cut)

    def _begin(self, t: float) -> None:
        if self.attempt and self.attempt not in self._begun:
            self._begun[self.attempt] = math.floor(t)


def _copy(column: Column) -> Column:
    return Column(column.count[:], column.min[:], column.max[:], column.mean[:])


def _copy_of(one: Matrix) -> Matrix:
    copies: list[array[float]] = [one.mean[:], one.max[:]]
    return replace(one, t=one.t[:], count=one.count[:], attempt=one.attempt[:], mean=copies[0], max=copies[1])
