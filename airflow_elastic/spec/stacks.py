"""Where ranks stand: the stacks of their main threads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankStack:
    """One rank's main thread.

    Attributes:
        rank: global rank.
        worker: its worker.
        frames: `/path/train.py:52 in load`, the innermost first; () if the rank's program prints none.
    """

    rank: int
    worker: str
    frames: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stack:
    """Ranks that stand at the same place.

    Attributes:
        ranks: those ranks.
        frames: see `RankStack`.
        elsewhere: whether the other ranks wait for these, which stand at another place.
    """

    ranks: tuple[int, ...]
    frames: tuple[str, ...] = ()
    elsewhere: bool = False
