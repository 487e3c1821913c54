"""Checksums of a checkpoint's files. They detect accidental changes, not deliberate ones."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Protocol

from awscrt.checksums import combine_crc64nvme, crc64nvme

#: The current algorithm. S3 knows it too, and it costs a tenth of copying the bytes; sha256 is slower than a disk.
ALGORITHM = "crc64nvme"


Data = bytes | memoryview


class Digest(Protocol):
    """A checksum that is being computed, with hashlib's interface."""

    def update(self, data: Data, /) -> None:
        """Take further bytes into account."""
        ...

    def hexdigest(self) -> str:
        """The checksum of all bytes up to now."""
        ...


class Crc64:
    """The current algorithm."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: Data, /) -> None:
        """Take further bytes into account."""
        self._value = crc64nvme(data, self._value)

    def append(self, other: Crc64, size: int) -> None:
        """Add so many further bytes by their checksum."""
        self._value = combine_crc64nvme(self._value, other._value, size)

    def hexdigest(self) -> str:
        """16 hex digits."""
        return f"{self._value:016x}"


def new(name: str) -> Digest | None:
    """A digest by its name in a manifest, with those of hashlib; None if it is unknown here."""
    if name == ALGORITHM:
        return Crc64()
    return hashlib.new(name) if name in hashlib.algorithms_available else None


def of(data: Data) -> str:
    """The checksum of some bytes, by the current algorithm."""
    return f"{crc64nvme(data):016x}"


def joined(parts: Sequence[str], each: int, size: int) -> str:
    """The checksum of so many bytes, from the checksums of their parts. This is faster than checksums over the bytes.

    Args:
        parts: checksums of the parts, in order, by the current algorithm.
        each: bytes of a part; the last one may have fewer.
        size: bytes of all of them.

    Raises:
        ValueError: one of them is no such checksum.
    """
    try:
        values = struct.unpack(f">{len(parts)}Q", bytes.fromhex("".join(parts)))
    except struct.error:
        raise ValueError(f"{len(parts)} of them have {sum(map(len, parts))} digits") from None
    whole, left = 0, size
    for value in values:
        whole = combine_crc64nvme(whole, value, min(each, left))
        left -= each
    return f"{whole:016x}"
