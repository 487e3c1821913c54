"""The index of a checkpoint's file: which entry is where. Each rank writes one, as JSON, beside its file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

#: Each block of so many bytes of an entry has its own checksum, so a reader of a part reads little more than that part.
#: Smaller blocks save reading at another world size, but need more checksums.
BLOCK_BYTES = 128 << 10

FORMER_BLOCK_BYTES = 512 << 10  # for files written before an index had `block_bytes`


def blocks(size: int, each: int) -> Iterator[tuple[int, int]]:
    """The start and end of each block of so many bytes; the end is exclusive."""
    return ((at, min(size, at + each)) for at in range(0, size, each))


def block_count(size: int, each: int) -> int:
    """The number of blocks that so many bytes have."""
    return -(-size // each)


@dataclass(frozen=True, slots=True)
class TensorChunk:
    """A tensor, or a rank's part of one, as it is in memory: row by row, little-endian.

    Attributes:
        key: its name in the state, e.g. `model.layer.weight`.
        dtype: as torch calls it, e.g. `float32`.
        shape: of the whole tensor.
        offsets: where this part begins, in each dimension.
        lengths: of this part, in each dimension.
        at: of its first byte in the file.
        size: in bytes.
        checksums: of its blocks, crc64nvme as hex digits; none as long as they are in memory only.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    at: int
    size: int
    checksums: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Blob:
    """A value that is not a tensor: `size` bytes from `at`.

    It is pickled, or in the form of `torch.save` where it holds a tensor. Its checksums are like those of a piece.
    """

    key: str
    at: int
    size: int
    checksums: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Index:
    """Everything that one rank's file holds.

    Attributes:
        pieces: tensors.
        blobs: all other values.
        block_bytes: size of the blocks that have checksums; None before there are checksums.
        ties: further names of tensors, with the name that each is stored under, e.g. for tied weights. None where each
            name was stored separately, tied or not, as former releases did.
    """

    pieces: tuple[TensorChunk, ...]
    blobs: tuple[Blob, ...]
    block_bytes: int | None = None
    ties: dict[str, str] | None = None
