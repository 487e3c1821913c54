"""The place of each of a rank's tensors in its slot, and so in its file. It depends only on their names and sizes.

Training waits for this. The tensors are mostly the same from save to save, so the last layouts are cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

import torch

from airflow_elastic.runtime.checkpoint.format.row_bands import cuts
from airflow_elastic.spec.checkpoints.index import TensorChunk

_ALIGN = 64


class Extent(NamedTuple):
    """A tensor, or a rank's part of one.

    Attributes:
        key: its name in the state.
        dtype: torch's.
        shape: of the whole tensor.
        offsets: where the part begins, in each dimension.
        lengths: of the part, in each dimension.
        ranks: the number of ranks among which the rows are divided; 1 if they are not.
    """

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    ranks: int = 1

    @property
    def share(self) -> float:
        """The fraction of the tensor's rows that come before this part."""
        return self.offsets[0] / self.shape[0] if self.offsets and self.shape[0] else 0.0

    @property
    def size(self) -> int:
        """In bytes."""
        return prod(self.lengths) * self.dtype.itemsize


class Location(NamedTuple):
    """The place of an extent: for each of its bands the number of rows, and its first byte. No rows: it is one band."""

    rows: tuple[int, ...]
    begins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The places of extents in a file.

    Attributes:
        pieces: the bands with their places, in the order of the file.
        places: of each extent, in the order in which they were given.
        end: the byte after the last one.
    """

    pieces: tuple[TensorChunk, ...]
    places: tuple[Location, ...]
    end: int


@lru_cache(maxsize=3)  # a rank lays out three lists for each state: see `Layout.kept`, `rest`, `perhaps`
def lay_out_file(extents: tuple[Extent, ...], begin: int = 0) -> FileLayout:
    """Place extents from byte `begin` on, cut into bands. Bands that begin at the same `share` are side by side."""
    cut = [_bands(extent) for extent in extents]
    bands = [(band, number) for number, mine in enumerate(cut) for band in mine]
    begins: list[list[int]] = [[] for _ in extents]
    pieces, at = [], begin
    for band, number in sorted(bands, key=lambda one: one[0].share):
        # Bands are aligned to their dtype only, so that readers read no padding between them.
        at = aligned(at, band.dtype.itemsize if len(cut[number]) > 1 else _ALIGN)
        name, size = _name(band.dtype), band.size
        pieces.append(TensorChunk(band.key, name, band.shape, band.offsets, band.lengths, at, size))
        begins[number].append(at)
        at += size
    rows = (tuple(band.lengths[0] for band in mine) if len(mine) > 1 else () for mine in cut)
    places = tuple(Location(own, tuple(at)) for own, at in zip(rows, begins, strict=True))
    return FileLayout(tuple(pieces), places, at)


def _bands(extent: Extent) -> list[Extent]:
    """The extent, cut by its rows."""
    if extent.ranks < 2:  # a scalar has no rows
        return [extent]
    (begin, *others), (rows, *lengths) = extent.offsets, extent.lengths
    edges = cuts(extent.shape[0], begin, rows, extent.ranks, extent.size)
    return [
        extent._replace(offsets=(begin + low, *others), lengths=(high - low, *lengths))
        for low, high in pairwise((0, *edges, rows))
    ]


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def aligned(at: int, to: int = _ALIGN) -> int:
    """The next multiple of `to`, from byte `at` on."""
    return -(-at // to) * to
