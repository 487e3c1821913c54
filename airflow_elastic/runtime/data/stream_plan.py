"""Cuts a stream into global batches: lanes take turns.

The shards of an epoch are shuffled and dealt to a fixed number of lanes, like cards. A lane is read from its first
shard to its last. Lanes take turns, one sample each; a lane that has run dry is passed over. So the order of samples
does not depend on ranks, and any rank may read any lane. The position of a stream is the position of each lane.

The length of a shard need not be known. Ranks read a few turns ahead and exchange what they have found. From that each
rank cuts the same global batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

#: Successive samples of a lane: their shard (as a number within the lane), the first sample, and how many.
Run = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The position of a stream.

    Attributes:
        epoch: from 0.
        turn: the lane whose turn it is.
        lanes: for each lane its shard, as a number within the lane, and how many samples of the shard are consumed.
    """

    epoch: int
    turn: int
    lanes: tuple[tuple[int, int], ...]

    @classmethod
    def first(cls, epoch: int, lanes: int) -> StreamPosition:
        """The beginning of an epoch."""
        return cls(epoch, 0, ((0, 0),) * lanes)


@dataclass(frozen=True, slots=True)
class LaneSamples:
    """The next samples that a lane was found to have.

    Attributes:
        lane: its number.
        runs: its samples.
        ended: shards whose end was reached, and how many samples they have.
        dry: whether the lane has no more samples.
    """

    lane: int
    runs: tuple[Run, ...]
    ended: tuple[tuple[int, int], ...]
    dry: bool


class LaneReader:
    """Reads one lane, a few samples at once.

    Args:
        lane: its number.
        shards: its shards.
        at: its position.
        read: yields the samples of a shard from an offset on.
    """

    def __init__(
        self, lane: int, shards: Sequence[Any], at: tuple[int, int], read: Callable[[Any, int], Iterable[Any]]
    ) -> None:
        self._lane, self._shards, self._read = lane, shards, read
        self._ended: list[tuple[int, int]] = []
        self._samples = self._all(*at)
        # One sample is always read ahead, so the last one is known to be the last.
        self._next = next(self._samples, None)

    def _all(self, number: int, offset: int) -> Iterator[tuple[int, int, Any]]:
        for at in range(number, len(self._shards)):
            for sample in self._read(self._shards[at], offset):
                yield at, offset, sample
                offset += 1
            self._ended.append((at, offset))
            offset = 0

    def take(self, count: int) -> tuple[LaneSamples, list[Any]]:
        """The next samples, so many or as many as are left."""
        taken: list[tuple[int, int, Any]] = []
        while self._next is not None and len(taken) < count:
            taken.append(self._next)
            self._next = next(self._samples, None)
        groups = [list(group) for _, group in groupby(taken, key=lambda one: one[0])]
        runs = tuple((group[0][0], group[0][1], len(group)) for group in groups)
        ended, self._ended = tuple(self._ended), []
        return LaneSamples(self._lane, runs, ended, dry=self._next is None), [sample for *_, sample in taken]


@dataclass(frozen=True, slots=True)
class Batch:
    """One global batch.

    Attributes:
        turn: the lane that began.
        runs: each lane's samples in it.
    """

    turn: int
    runs: tuple[tuple[Run, ...], ...]

    def counts(self) -> list[int]:
        """How many samples each lane gave."""
        return [sum(count for *_, count in runs) for runs in self.runs]


class StreamPlan:
    """The known samples of all lanes, from a position of the stream on.

    Args:
        spot: that position.
    """

    def __init__(self, spot: StreamPosition) -> None:
        self._epoch, self._turn, self._at = spot.epoch, spot.turn, list(spot.lanes)
        self._ahead: list[deque[Run]] = [deque() for _ in spot.lanes]
        self._left = [0] * len(spot.lanes)
        self._dry = [False] * len(spot.lanes)

    @property
    def spot(self) -> StreamPosition:
        """The position of the stream after the last global batch."""
        return StreamPosition(self._epoch, self._turn, tuple(self._at))

    @property
    def open(self) -> list[int]:
        """Lanes that may have more samples than are known."""
        return [lane for lane, dry in enumerate(self._dry) if not dry]

    @property
    def over(self) -> bool:
        """Whether the last global batch was the last of the epoch."""
        return all(self._dry) and not any(self._left)

    def found(self, stretch: LaneSamples) -> None:
        """A lane was found to have these samples, too."""
        self._ahead[stretch.lane].extend(stretch.runs)
        self._left[stretch.lane] += sum(count for *_, count in stretch.runs)
        self._dry[stretch.lane] = stretch.dry

    def cut(self, size: int) -> Batch | None:
        """Take the next global batch; None if more must be read for it.

        It is smaller than `size` only at the end of the epoch, and empty after that.
        """
        left, begins = list(self._left), self._turn
        missing = size if self.open else min(size, sum(left))
        turn = begins
        while missing:
            if not all(left[lane] for lane in self.open):
                return None
            live = [lane for lane in [*range(turn, len(left)), *range(turn)] if left[lane]]
            rounds = min(missing // len(live), *(left[lane] for lane in live))
            # Whole rounds, until the first lane is dry; or less than a round.
            takers = live if rounds else live[:missing]
            for lane in takers:
                left[lane] -= rounds or 1
            missing -= (rounds or 1) * len(takers)
            turn = turn if rounds else (takers[-1] + 1) % len(left)
        self._turn = turn
        taken = [before - after for before, after in zip(self._left, left, strict=True)]
        return Batch(begins, tuple(self._take(lane, count) for lane, count in enumerate(taken)))

    def _take(self, lane: int, count: int) -> tuple[Run, ...]:
        taken: list[Run] = []
        self._left[lane] -= count
        while count:
            shard, first, has = self._ahead[lane].popleft()
            part = min(has, count)
            if part < has:
                self._ahead[lane].appendleft((shard, first + part, has - part))
            taken.append((shard, first, part))
            self._at[lane] = (shard, first + part)
            count -= part
        return tuple(taken)
