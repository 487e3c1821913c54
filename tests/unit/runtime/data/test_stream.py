"""Each sample of a stream once, in global batches that know nothing of ranks, over any number of interruptions."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import airflow_elastic.runtime as elastic
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.data.portions import Portion
from airflow_elastic.runtime.data.sampler import order_of
from airflow_elastic.runtime.data.stream import Plan, ShardedStream, epoch_of
from airflow_elastic.runtime.data.stream_plan import StreamPosition
from airflow_elastic.spec.errors import InvalidInput
from tests.support.machine.threads import together
from tests.support.training.streams import stream_of

DATA = Path(__file__).parents[4] / "docs/how-to/stream-data.md"

Batch = frozenset[tuple[int, int]]


def plan_of(global_batch: int, micro_batch: int | None = None, **options: Any) -> Plan:
    return Plan(global_batch, micro_batch, seed=3, shuffle=True, options={"collate_fn": list, **options})


def consume(
    stream: ShardedStream, plan: Plan, ranks: Collectives, batches: int, offset: int = 0
) -> list[list[Portion]]:
    """What one rank is given of the next global batches, piece by piece; it does a step with each of these."""
    taken: list[list[Portion]] = []
    pieces: list[Portion] = []
    portions = epoch_of(stream, stream.spot, offset, plan, ranks, account=True)
    while len(taken) < batches and (portion := next(portions, None)) is not None:
        pieces.append(portion)
        if portion.completes:
            taken.append(pieces)
            pieces = []
            assert portion.completes.done
            portion.completes.done()
    return taken


def counted(batch: list[list[Portion]]) -> Batch:
    """The samples that count of a global batch, of which every rank has its pieces."""
    samples = [sample for rank in batch for piece in rank if piece.weight for sample in piece.content]
    assert len(samples) == len(set(samples))
    return frozenset(samples)


def alone(lengths: list[int], lanes: int, global_batch: int) -> list[Batch]:
    """The global batches of an epoch, by the rule: lanes take turns, one sample each, and a dry one is passed over."""
    order = order_of(len(lengths), 3, 0, shuffle=True).tolist()
    lanes = min(lanes, len(lengths))
    held = [
        [(shard, number) for shard in order[lane::lanes] for number in range(lengths[shard])]
        for lane in range(lanes)
    ]
    turns = [lane[turn] for turn in range(max(map(len, held))) for lane in held if turn < len(lane)]
    return [frozenset(turns[at : at + global_batch]) for at in range(0, len(turns), global_batch)]


some_shards = st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(any)


@given(
    lengths=some_shards,
    lanes=st.integers(1, 7),
    global_batch=st.integers(1, 16),
    micro_batch=st.none() | st.integers(1, 5),
    lives=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=3),
    last=st.integers(1, 4),
)
def test_exactly_once_in_the_same_batches_whatever_the_world_sizes(
    lengths: list[int],
    lanes: int,
    global_batch: int,
    micro_batch: int | None,
    lives: list[tuple[int, int]],
    last: int,
) -> None:
    expected = alone(lengths, lanes, global_batch)
    seen: list[Batch] = []
    state = stream_of(lengths, lanes).state_dict()
    for world, batches in [*lives, (last, 10**6)]:

        def life(ranks: Collectives, state: Any = state, batches: int = batches) -> Any:
            stream = stream_of(lengths, lanes)
            stream.load_state_dict(json.loads(json.dumps(state)))
            if stream.spot.epoch:
                return [], state
            return consume(stream, plan_of(global_batch, micro_batch), ranks, batches), stream.state_dict()

        results = together(world, life)
        assert all(told == results[0][1] for _, told in results), "ranks differ in where the stream stands"
        state = results[0][1]
        seen += [counted(list(batch)) for batch in zip(*(taken for taken, _ in results), strict=True)]
    assert seen == expected


@given(
    lengths=some_shards,
    lanes=st.integers(1, 7),
    global_batch=st.integers(1, 16),
    micro_batch=st.none() | st.integers(1, 5),
    world=st.integers(1, 4),
)
def test_weights_and_pieces(
    lengths: list[int], lanes: int, global_batch: int, micro_batch: int | None, world: int
) -> None:
    plan = plan_of(global_batch, micro_batch)
    ranks = together(world, lambda ranks: consume(stream_of(lengths, lanes), plan, ranks, 10**6))
    for batch in zip(*ranks, strict=True):
        assert len({len(pieces) for pieces in batch}) == 1, "ranks would wait for each other in vain"
        size = len(counted(list(batch)))
        for piece in (piece for pieces in batch for piece in pieces):
            assert len(piece.content) <= (micro_batch or global_batch)
            assert piece.weight in (0, pytest.approx(len(piece.content) * world / size))
        assert sum(piece.weight for pieces in batch for piece in pieces) / world == pytest.approx(1.0)


def test_workers_of_the_loader_read_ahead_and_change_nothing() -> None:
    lengths = [7 * at % 31 for at in range(23)]
    plan = plan_of(32, num_workers=2)
    stream = stream_of(lengths, 6)
    seen = [counted([batch]) for batch in consume(stream, plan, Collectives(0, 1, None), 2)]
    assert stream.state_dict()["turn"] == 2 * 32 % 6
    assert sum(counted_in(stream, lengths)) == 2 * 32
    seen += [counted([batch]) for batch in consume(stream, plan, Collectives(0, 1, None), 10**6, 2 * 32)]
    assert seen == alone(lengths, 6, 32)


def counted_in(stream: ShardedStream, lengths: list[int]) -> list[int]:
    """How many samples of each lane lie behind where the stream stands."""
    order = order_of(len(lengths), 3, 0, shuffle=True).tolist()
    shards = [order[lane :: stream.lanes] for lane in range(stream.lanes)]
    return [
        sum(lengths[shard] for shard in mine[:number]) + offset
        for mine, (number, offset) in zip(shards, stream.spot.lanes, strict=True)
    ]


def test_a_rank_reads_its_own_share_and_little_more() -> None:
    lengths, reads = [50] * 12, [0, 0, 0]

    def work(ranks: Collectives) -> None:
        def read(shard: int, offset: int) -> Iterator[int]:
            for number in range(offset, lengths[shard]):
                reads[ranks.rank] += 1
                yield number

        consume(ShardedStream(range(12), read, lanes=12), plan_of(24), ranks, 5)

    together(3, work)
    assert all(5 * 8 <= count <= (5 + 4) * 8 + 4 for count in reads), reads


def test_epochs_have_orders_of_their_own_and_shards_end() -> None:
    stream, plan = stream_of([4, 4, 4, 0, 4], 2), plan_of(6)
    first = consume(stream, plan, Collectives(0, 1, None), 10**6)
    stream.spot = StreamPosition.first(1, stream.lanes)
    second = consume(stream, plan, Collectives(0, 1, None), 10**6)
    orders = [
        [sample for batch in epoch for piece in batch for sample in piece.content]
        for epoch in (first, second)
    ]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    told = [piece.completes for batch in first for piece in batch if piece.completes]
    assert sorted((one.shard, one.length) for given in told for one in given.ended) == [
        (0, 4), (1, 4), (2, 4), (3, 0), (4, 4),
    ]  # fmt: skip
    spans = [span for given in told for span in given.spans]
    assert sum(span.count for span in spans) == 16


def test_other_shards_are_refused() -> None:
    begun = stream_of([3, 3, 3], 2)
    consume(begun, plan_of(2), Collectives(0, 1, None), 1)
    state = begun.state_dict()
    with pytest.raises(InvalidInput, match=r"3 shards in 2 lanes .* The script has 4 shards in 2 lanes"):
        stream_of([3, 3, 3, 3], 2).load_state_dict(state)
    with pytest.raises(InvalidInput, match=r"in 2 lanes .* The script has 3 shards in 3 lanes"):
        stream_of([3, 3, 3], 8).load_state_dict(state)
    with pytest.raises(InvalidInput, match="given no shards"):
        stream_of([], 8)


def test_what_can_only_be_iterated_is_consumed_once_as_the_documentation_has_it() -> None:
    (recipe,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", DATA.read_text(), re.DOTALL)
        if "slice_n" in block
    )

    def life(ranks: Collectives, state: Any, batches: int) -> Any:
        words: dict[str, Any] = {"data": range(91), "itertools": itertools, "elastic": elastic}
        exec(recipe, words)
        stream: ShardedStream = words["stream"]
        if state is not None:
            stream.load_state_dict(state)
        return consume(stream, plan_of(10), ranks, batches), stream.state_dict()

    seen: list[int] = []
    state = None
    for world, batches in ((3, 4), (2, 2), (8, 10)):
        results = together(world, partial(life, state=state, batches=batches))
        state = results[0][1]
        seen += [
            sample
            for taken, _ in results
            for pieces in taken
            for piece in pieces
            if piece.weight
            for sample in piece.content
        ]
    assert sorted(seen) == list(range(91))
