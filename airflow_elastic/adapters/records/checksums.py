"""Checksums of a checkpoint's files. They tell bytes that have changed, not somebody who changes them on purpose."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
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

    def append(self, other: Crc64, size: int) -> None:
        """Take so many further bytes into account, whose checksum is known."""
        self._value = combine_crc64nvme(self._value, other._value, size)

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
    return f"{crc64nvme(data):016x}"


def joined(parts: Sequence[str], each: int, size: int) -> str:
    """The checksum of so many bytes, from those of their parts: to compare one takes a tenth of comparing eight.

    Args:
        parts: of each part, in order, by today's algorithm.
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
