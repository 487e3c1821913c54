"""Checksums of a checkpoint's files. They tell bytes that have changed, not somebody who changes them on purpose."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Protocol

from awscrt.checksums import combine_crc64nvme, crc64nvme

#: What is written today. S3 knows it too, and it costs a tenth of copying the bytes; sha256 costs more than a disk.
ALGORITHM = "crc64nvme"


Data = bytes | memoryview


class Digest(Protocol):
    """A checksum in the making, as hashlib has them."""

    def update(self, data: Data, /) -> None:
        """Take further bytes into account."""
        ...

    def hexdigest(self) -> str:
        """The checksum of all bytes up to now."""
        ...


class Crc64:
    """Today's algorithm."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: Data, /) -> None:
        """Take further bytes into account."""
        self._value = crc64nvme(data, self._value)

    def hexdigest(self) -> str:
        """16 hex digits."""
        return f"{self._value:016x}"


def new(name: str) -> Digest | None:
    """A digest by the name that a manifest gives it, hashlib's among them; None where it is not known here."""
    if name == ALGORITHM:
        return Crc64()
    return hashlib.new(name) if name in hashlib.algorithms_available else None


def of(data: Data) -> str:
    """The checksum of some bytes, by today's algorithm."""
    digest = Crc64()
    digest.update(data)
    return digest.hexdigest()


def further(checksum: int, data: Data) -> int:
    """Today's checksum of some bytes and of those behind them, as a number; that of none is 0."""
    return int(crc64nvme(data, checksum))


def combined(parts: Iterable[tuple[int, int]]) -> str:
    """The checksum of all of some bytes, out of the sizes and checksums (as numbers) of their parts, in their order."""
    whole = 0
    for size, checksum in parts:
        whole = combine_crc64nvme(whole, checksum, size)
    return f"{whole:016x}"
