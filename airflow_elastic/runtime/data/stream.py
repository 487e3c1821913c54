"""Data that is read and not indexed: shards, each read from its beginning to its end, or from a sample on."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any

import torch

from airflow_elastic.runtime.arguments import whole_number
from airflow_elastic.runtime.checkpoint.save import random_state
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.data.portions import BatchShare, Portion
from airflow_elastic.runtime.data.sampler import count_pieces, cut, order_of, seed_of
from airflow_elastic.runtime.data.stream_plan import (
    Batch,
    LaneReader,
    LaneSamples,
    StreamPlan,
    StreamPosition,
)
from airflow_elastic.spec.checkpoints.sample_records import Ended, Span
from airflow_elastic.spec.errors import InvalidInput

#: So many global batches are read ahead at once. Ranks exchange what they have found once for all of them.
_AHEAD = 4


class ShardedStream:
    """A data set of shards: files, objects of a store, anything that is read in order.

    Hand it to `Session.restore` by name, as `data=stream`, and to `Session.loader`.

    Args:
        shards: all of them. They and their order must not change between attempts until an epoch is over. Their `repr`
            shows whether they are the same.
        read: yields the samples of a shard from an offset on, always the same ones in the same order. If the loader has
            workers, it is called there.
        lanes: the number of shards that all ranks together read at the same time. Give at least as many as there will
            ever be ranks. It is part of the order of samples, so it must not change until an epoch is over.

    Attributes:
        spot: the stream's position, after the last step.
    """

    def __init__(
        self, shards: Sequence[Any], read: Callable[[Any, int], Iterable[Any]], *, lanes: int = 64
    ) -> None:
        lanes = whole_number("lanes", lanes, 1, "ShardedStream")
        if not shards:
            raise InvalidInput("ShardedStream: given no shards; allowed: one or more")
        self.shards, self.read = shards, read
        self.lanes = min(lanes, len(shards))
        self.spot = StreamPosition.first(0, self.lanes)

    def state_dict(self) -> dict[str, Any]:
        """Its position, for a checkpoint."""
        return {
            "shards": len(self.shards),
            "digest": self._digest,
            "epoch": self.spot.epoch,
            "turn": self.spot.turn,
            "lanes": self.spot.lanes,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the position from a checkpoint. At the beginning of an epoch, the shards may have changed.

        Raises:
            InvalidInput: it is in the middle of an epoch, and shards, their order or the lanes have changed.
        """
        spot = StreamPosition(state["epoch"], state["turn"], tuple(tuple(lane) for lane in state["lanes"]))
        shards, lanes, digest = state["shards"], len(spot.lanes), state.get("digest", self._digest)
        if (shards, lanes, digest) != (len(self.shards), self.lanes, self._digest):
            if spot != StreamPosition.first(spot.epoch, lanes):
                raise InvalidInput(
                    f"the checkpoint is in the middle of epoch {spot.epoch} of {shards} shards in {lanes} lanes "
                    f"({state.get('digest', 'unnamed')}). The script has {len(self.shards)} shards in {self.lanes} "
                    f"lanes ({self._digest}). Use the former shards, with the same names and order, and change them "
                    "when the epoch is over. Or begin a run with another URI"
                )
            spot = StreamPosition.first(spot.epoch, self.lanes)
        self.spot = spot

    @cached_property
    def _digest(self) -> str:
        """A digest of the shards in their order, without addresses of memory."""
        digest = blake2b(digest_size=8)
        for shard in self.shards:
            digest.update(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(shard)).encode(errors="replace") + b"\0")
        return digest.hexdigest()

    def stand(self, spot: StreamPosition) -> None:
        """A step was done: this is the stream's position now."""
        self.spot = spot

    def any_sample(self) -> Any:
        """Some sample, for a rank that must take part in a step without one of its own."""
        with random_state.preserved():
            return next(sample for shard in self.shards for sample in self.read(shard, 0))


@dataclass(frozen=True, slots=True)
class Plan:
    """How to consume an epoch of a stream.

    Attributes:
        global_batch: samples of one optimizer step, all ranks together.
        micro_batch: the most samples that a rank gets at once; None: its whole share.
        seed: of the order of shards.
        shuffle: False keeps their order.
        options: for `torch.utils.data.DataLoader`.
    """

    global_batch: int
    micro_batch: int | None
    seed: int
    shuffle: bool
    options: Mapping[str, Any]


def epoch_of(
    stream: ShardedStream, spot: StreamPosition, offset: int, plan: Plan, ranks: Collectives, *, account: bool
) -> Iterator[Portion]:
    """Yield a rank's portions of an epoch. All ranks go through it together.

    Args:
        stream: the data.
        spot: its position.
        offset: samples of the epoch that are consumed already.
        plan: how to consume it.
        ranks: this rank among the others.
        account: record which samples were fetched.
    """
    collate = plan.options.get("collate_fn") or torch.utils.data.default_collate
    reading, lanes = _Reading(stream, spot, plan, ranks), StreamPlan(spot)
    spare: list[Any] = []
    while True:
        batch = lanes.cut(plan.global_batch)
        if batch is None:
            for stretch in reading.more(lanes.open):
                lanes.found(stretch)
            continue
        counts = batch.counts()
        if not (size := sum(counts)):
            return
        offset += size
        samples = reading.claim(batch)
        given = BatchShare(
            spot.epoch,
            offset,
            size,
            lanes.over,
            spans=reading.spans(batch) if account else (),
            ended=reading.ended(),
            done=partial(
                stream.stand, StreamPosition.first(spot.epoch + 1, stream.lanes) if lanes.over else lanes.spot
            ),
        )
        # A rank without a sample still has to take part in the collectives, with weight 0.
        spare = samples[-1:] or spare or [stream.any_sample()]
        largest = max(sum(counts[rank :: ranks.world_size]) for rank in range(ranks.world_size))
        pieces = cut(0, len(samples), count_pieces(largest, plan.micro_batch))
        for number, (low, high) in enumerate(pieces, 1):
            weight = (high - low) * ranks.world_size / size
            yield Portion(
                collate(samples[low:high] or spare), weight, given if number == len(pieces) else None
            )


class _Reading:
    """Reads a rank's own lanes of an epoch, and knows what the others have read."""

    def __init__(self, stream: ShardedStream, spot: StreamPosition, plan: Plan, ranks: Collectives) -> None:
        self._ranks, self._lanes = ranks, stream.lanes
        order = order_of(len(stream.shards), plan.seed, spot.epoch, shuffle=plan.shuffle)
        self._order: list[int] = order.tolist()
        own = range(ranks.rank, stream.lanes, ranks.world_size)
        self._samples: dict[int, deque[Any]] = {lane: deque() for lane in own}
        self._ended: list[Ended] = []
        turns = -(-_AHEAD * plan.global_batch // stream.lanes)
        seed = seed_of(plan.seed, spot.epoch)
        # As for data with an index: with its own generator, the loader does not use the global one.
        settings = {"generator": torch.Generator().manual_seed(seed), **plan.options, "collate_fn": _as_it_is}
        source = _Source(stream, spot, self._order, own, turns, seed)
        self._blocks = iter(torch.utils.data.DataLoader(source, batch_size=None, **settings))

    def more(self, lanes: Iterable[int]) -> Iterator[LaneSamples]:
        """Read on in this rank's own lanes. All ranks call this together; it yields what all of them have found."""
        wanted, found = self._samples.keys() & set(lanes), []
        while wanted:
            with random_state.preserved():  # a resumed run may read ahead by another distance
                blocks = next(self._blocks)
            for stretch, samples in blocks:
                wanted.discard(stretch.lane)
                found.append(stretch)
                self._samples[stretch.lane].extend(samples)
                self._ended += [Ended(self._shard(stretch.lane, at), size) for at, size in stretch.ended]
        for told in self._ranks.gather(found):
            yield from told

    def claim(self, batch: Batch) -> list[Any]:
        """This rank's samples of a global batch: one of each of its lanes in turn."""
        counts = batch.counts()
        own = sorted(self._samples, key=lambda lane: (lane - batch.turn) % self._lanes)
        return [
            self._samples[lane].popleft()
            for turn in range(max(counts))
            for lane in own
            if turn < counts[lane]
        ]

    def spans(self, batch: Batch) -> tuple[Span, ...]:
        """The places of these samples in the shards."""
        runs = ((lane, run) for lane in self._samples for run in batch.runs[lane])
        return tuple(Span(self._shard(lane, at), first, count) for lane, (at, first, count) in runs)

    def ended(self) -> tuple[Ended, ...]:
        """Shards whose end was reached since the last call."""
        ended, self._ended = tuple(self._ended), []
        return ended

    def _shard(self, lane: int, number: int) -> int:
        return self._order[lane + number * self._lanes]


class _Source(torch.utils.data.IterableDataset[Any]):
    """Reads lanes, some turns at once. Each worker of a loader reads a part of the lanes."""

    def __init__(
        self,
        stream: ShardedStream,
        spot: StreamPosition,
        order: Sequence[int],
        lanes: Sequence[int],
        turns: int,
        seed: int,
    ) -> None:
        self._stream, self._spot, self._order = stream, spot, order
        self._lanes, self._turns, self._seed = lanes, turns, seed

    def __iter__(self) -> Iterator[list[tuple[LaneSamples, list[Any]]]]:
        worker = torch.utils.data.get_worker_info()
        mine = self._lanes[worker.id :: worker.num_workers] if worker else self._lanes
        readers = [self._reader(lane) for lane in mine]
        while readers:
            taken = [reader.take(self._turns) for reader in readers]
            yield taken
            readers = [reader for reader, (stretch, _) in zip(readers, taken, strict=True) if not stretch.dry]

    def _reader(self, lane: int) -> LaneReader:
        shards = self._order[lane :: self._stream.lanes]
        return LaneReader(lane, shards, self._spot.lanes[lane], self._read)

    def _read(self, shard: int, offset: int) -> Iterator[Any]:
        """The samples of a shard. Random numbers for a sample depend only on the sample and the epoch."""
        random_state.seed(self._seed, shard, offset)
        for behind, sample in enumerate(self._stream.read(self._stream.shards[shard], offset), offset + 1):
            yield sample
            random_state.seed(self._seed, shard, behind)


def _as_it_is(item: Any) -> Any:
    return item
