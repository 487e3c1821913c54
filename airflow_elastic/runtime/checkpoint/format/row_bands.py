"""In which bands of rows a rank's part of a sharded tensor is stored.

Ranks of another world size need some rows of every tensor: a fifth of each, where three have saved and five restore.
With each part in one piece, what a rank needs is scattered over the whole file, and where a store is asked over a
network, a request takes as long as some megabytes. So a part is cut where ranks of other world sizes begin. In the file
those bands of all tensors lie side by side that begin at the same share of their tensors: what a rank needs is one
stretch of it, or nearly.
"""

from __future__ import annotations

from functools import cache

_LEAST_BYTES = 512 << 10  # of a band, on the average: an index tells of each one
_MOST = 16  # bands of a part


@cache  # a model has many tensors alike, and an optimizer has several for each of them
def cuts(rows: int, begin: int, count: int, ranks: int, size: int) -> tuple[int, ...]:
    """Where to cut a part, in rows from its first one on, without its ends; nothing where it stays whole.

    Between half and twice as many ranks find their rows cut exactly; where that would be too many bands, they are of
    about the same size, and ranks read what they do not need at the edges. Where rounding has two world sizes begin
    nearly alike, a band has a few rows.

    Args:
        rows: of the whole tensor.
        begin: the part's first row.
        count: its rows.
        ranks: that have a part of the tensor.
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
