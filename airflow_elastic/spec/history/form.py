"""The stored form of a part of a history."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.history.types import Column, Condition, HistoryUnreadable, Matrix, Part, Table

HISTORY_VERSION = 1

_MAGIC = b"airflow-elastic history\n"
_HEAD = struct.Struct("<II")  # version, bytes of the header
#: No history comes near it. It protects readers from an object that somebody else has made.
_MOST_BYTES = 1 << 29


@dataclass(frozen=True, slots=True)
class _MatrixHead:
    name: str
    rows: tuple[str, ...]
    buckets: int


@dataclass(frozen=True, slots=True)
class _Head:
    """What precedes the numbers."""

    writer: str
    at: float
    attempt: int
    begun: Mapping[str, float]
    includes: Mapping[str, float]
    buckets: int
    names: tuple[str, ...]
    matrices: tuple[_MatrixHead, ...]
    conditions: tuple[Condition, ...]


def encode_part(part: Part) -> bytes:
    """The stored form: a header in JSON and then all numbers, compressed. Columns are stored byte by byte, because
    the upper bytes of neighbouring numbers are alike.
    """
    table = part.table
    head = _Head(
        writer=part.writer,
        at=part.at,
        attempt=part.attempt,
        begun={str(number): at for number, at in part.begun.items()},
        includes=part.includes,
        buckets=len(table.t),
        names=tuple(table.columns),
        matrices=tuple(_MatrixHead(name, one.rows, len(one.t)) for name, one in part.matrices.items()),
        conditions=part.conditions,
    )
    words = json.dumps(encode(head), separators=(",", ":"), allow_nan=False).encode()
    body = b"".join([words, *(_planes(numbers) for numbers in _arrays(part))])
    return _MAGIC + _HEAD.pack(HISTORY_VERSION, len(words)) + zlib.compress(body)


def decode_part(data: bytes) -> Part:
    """The part in a stored object.

    Raises:
        HistoryUnreadable: it is damaged, or of a newer release.
    """
    start = len(_MAGIC) + _HEAD.size
    if len(data) < start or not data.startswith(_MAGIC):
        raise HistoryUnreadable("it is no history: it does not begin as one")
    version, length = _HEAD.unpack_from(data, len(_MAGIC))
    if version > HISTORY_VERSION:
        raise HistoryUnreadable(f"it has version {version}, this release reads {HISTORY_VERSION}", newer=True)
    try:
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(data[start:], _MOST_BYTES)
        if not unpacker.eof:
            raise HistoryUnreadable("it is not complete, or larger than any history")
        head = decode(_Head, json.loads(body[:length]))
        return _part(head, memoryview(body)[length:])
    except (zlib.error, SpecError, ValueError, KeyError) as error:
        if isinstance(error, HistoryUnreadable):
            raise
        raise HistoryUnreadable(f"it is damaged: {error}") from error


def _part(head: _Head, body: memoryview) -> Part:
    source = _Numbers(body)
    t = source.take("d", head.buckets)
    columns = {
        name: Column(
            source.take("I", head.buckets),
            source.take("d", head.buckets),
            source.take("d", head.buckets),
            source.take("d", head.buckets),
        )
        for name in head.names
    }
    matrices = {one.name: _matrix(one, source) for one in head.matrices}
    if source.left:
        raise HistoryUnreadable(f"it has {source.left} bytes too many")
    return Part(
        writer=head.writer,
        at=head.at,
        attempt=head.attempt,
        begun={int(number): at for number, at in head.begun.items()},
        includes=dict(head.includes),
        table=Table(t, columns),
        matrices=matrices,
        conditions=head.conditions,
    )


def _matrix(head: _MatrixHead, source: _Numbers) -> Matrix:
    cells = head.buckets * len(head.rows)
    return Matrix(
        head.rows,
        source.take("d", head.buckets),
        source.take("I", head.buckets),
        source.take("I", head.buckets),
        source.take("f", cells),
        source.take("f", cells),
    )


def _arrays(part: Part) -> Iterator[array[Any]]:
    """All numbers of a part, in the order in which they are stored."""
    yield part.table.t
    for column in part.table.columns.values():
        yield from (column.count, column.min, column.max, column.mean)
    for one in part.matrices.values():
        yield from (one.t, one.count, one.attempt, one.mean, one.max)


def _planes(numbers: array[Any]) -> bytes:
    """The first bytes of all numbers, then the second ones, and so on."""
    raw = _little(numbers).tobytes()
    return b"".join(raw[i :: numbers.itemsize] for i in range(numbers.itemsize))


class _Numbers:
    """Takes one array after the other from stored bytes."""

    def __init__(self, body: memoryview) -> None:
        self._body = body

    @property
    def left(self) -> int:
        return len(self._body)

    def take(self, kind: str, count: int) -> array[Any]:
        numbers: array[Any] = array(kind)
        size = numbers.itemsize
        if count < 0 or len(self._body) < count * size:
            raise HistoryUnreadable("it is not complete")
        raw = bytearray(count * size)
        for i in range(size):
            raw[i::size] = self._body[i * count : (i + 1) * count]
        numbers.frombytes(raw)
        self._body = self._body[count * size :]
        return _little(numbers)


def _little(numbers: array[Any]) -> array[Any]:
    """The same in the byte order of stored numbers, and back."""
    if sys.byteorder == "little":
        return numbers
    turned = numbers[:]
    turned.byteswap()
    return turned
