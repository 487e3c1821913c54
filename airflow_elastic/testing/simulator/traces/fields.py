"""Reads single values of a trace, and says where a bad one is."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from airflow_elastic.spec.errors import shown
from airflow_elastic.testing.simulator.traces.trace import TraceError


@dataclass(frozen=True, slots=True)
class Where:
    """A record of a file: the file, and the line or the name of the record."""

    path: Path
    line: int | str

    def bad(self, field: str, given: object, allowed: str) -> TraceError:
        """The error for a value that is none."""
        at = f"line {self.line}" if isinstance(self.line, int) else self.line
        return TraceError(f"{self.path}, {at}, field {field}: given {shown(given)}; allowed: {allowed}")

    def lacking(self, fields: Sequence[str], given: Sequence[str]) -> TraceError:
        """The error for a record without fields that it must have."""
        at = f"line {self.line}" if isinstance(self.line, int) else self.line
        there = ", ".join(given) if given else "nothing"
        return TraceError(f"{self.path}, {at}: no field {', '.join(fields)}; there is {there}")

    def number(self, field: str, given: object, *, least: float = 0.0) -> float:
        """A finite number from `least` on."""
        try:
            value = float(given)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            value = math.nan
        if isinstance(given, bool) or not math.isfinite(value) or value < least:
            raise self.bad(field, given, f"a number from {least:g} on")
        return value

    def whole(self, field: str, given: object, *, least: int = 0) -> int:
        """An integer from `least` on."""
        value = self.number(field, given, least=least)
        if value != int(value):
            raise self.bad(field, given, f"an integer from {least} on")
        return int(value)

    def moment(self, field: str, given: object) -> float:
        """A date and a time of day as `2017-10-07 01:12:09`, in seconds."""
        try:
            return datetime.strptime(str(given), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise self.bad(field, given, "a moment such as 2017-10-07 01:12:09") from None


def read_text(path: Path) -> str:
    """The text of a file. Raises TraceError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        why = "there is no such file" if isinstance(error, FileNotFoundError) else reason
        raise TraceError(f"{path}: {why}; give the path of a trace, or `synthetic`") from None


def rows(
    path: Path, needed: Sequence[str], columns: Sequence[str] = ()
) -> Iterator[tuple[Where, Mapping[str, str]]]:
    """The records of a CSV file.

    Args:
        path: of the file.
        needed: columns that it must have.
        columns: the names of all columns, for files that may come without a first line of names.
    """
    lines = list(csv.reader(read_text(path).splitlines()))
    if not lines:
        raise TraceError(f"{path}: it is empty; a trace has a line for each job")
    header, first = [name.strip() for name in lines[0]], 1
    if columns and not set(needed) <= set(header) and len(header) == len(columns):
        header, first = list(columns), 0
    if missing := [name for name in needed if name not in header]:
        raise Where(path, 1).lacking(missing, header)
    for number, line in enumerate(lines[first:], first + 1):
        if not line:
            continue
        if len(line) != len(header):
            raise TraceError(f"{path}, line {number}: {len(line)} fields; the first line has {len(header)}")
        yield Where(path, number), dict(zip(header, line, strict=True))
