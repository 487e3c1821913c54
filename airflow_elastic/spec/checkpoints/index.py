"""What lies where in a checkpoint's files: each rank writes one, and this beside it, as JSON. Nothing of it is code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

#: Each so many bytes of an entry, from its first on, have a checksum of their own: who needs a part reads no more. Of
#: smaller blocks less is read in vain at another world size, and more has to be told.
BLOCK_BYTES = 128 << 10

FORMER_BLOCK_BYTES = 512 << 10  # of what was written before an index told it


def blocks(size: int, each: int) -> Iterator[tuple[int, int]]:
    """The first byte of each block of so many bytes, and the one behind its last."""
    return ((at, min(size, at + each)) for at in range(0, size, each))


def block_count(size: int, each: int) -> int:
    """How many blocks so many bytes have."""
    return -(-size // each)


@dataclass(frozen=True, slots=True)
class Piece:
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
    """Whatever is no tensor: `size` bytes from `at`, pickled, or as `torch.save` writes it where it holds a tensor.

    With checksums like a piece's.
    """

    key: str
    at: int
    size: int
    checksums: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Index:
    """All that one rank's file holds.

    Attributes:
        pieces: tensors.
        blobs: whatever else.
        block_bytes: how large the blocks are that have checksums; None before they have some.
        ties: further names of tensors, with the one by which each is stored: tied weights, for example. None where each
            name has been stored by itself, tied or not, as former releases did.
    """

    pieces: tuple[Piece, ...]
    blobs: tuple[Blob, ...]
    block_bytes: int | None = None
    ties: dict[str, str] | None = None
