"""The bands of rows in which a rank's part of a sharded tensor is stored.

Ranks of another world size need some rows of every tensor. If three ranks saved and five restore, each needs a fifth.
With each part in one piece, these rows would be scattered over the whole file. A request to a store on the network
takes as long as to transfer some megabytes, so many small requests are slow. Parts are therefore cut where the rows of
ranks of other world sizes begin. Bands of all tensors that begin at the same fraction of their tensors are side by side
in the file. So a rank reads one range of the file, or nearly one.
"""

from __future__ import annotations

from functools import cache

_LEAST_BYTES = 512 << 10  # of a band, on average: each band is an entry of the index
_MOST = 16  # bands of a part


@cache  # a model has many tensors alike, and an optimizer has several for each of them
def cuts(rows: int, begin: int, count: int, ranks: int, size: int) -> tuple[int, ...]:
    """The rows at which to cut a part, counted from its first row; empty if it stays whole.

    The cuts fit every world size from half to twice `ranks` exactly. If these are too many bands, the bands have about
    the same size instead, and ranks read some bytes too many at the edges. A band may have only a few rows, where two
    world sizes round to nearly the same row.

    Args:
        rows: of the whole tensor.
        begin: the part's first row.
        count: its rows.
        ranks: the number of ranks that have a part of the tensor.
        size: of the part, in bytes.
    """
    most = min(_MOST, size // _LEAST_BYTES)
    if ranks < 2 or most < 2:
        return ()
    worlds = range(-(-ranks // 2), 2 * ranks + 1)
    begins = {rank * -(-rows // world) - begin for world in worlds for rank in range(1, world)}
    inside = sorted(at for at in begins if 0 < at < count)
    if len(inside) >= most:
        inside = sorted({count * at // most for at in range(1, most)} - {0})
    return tuple(inside)
