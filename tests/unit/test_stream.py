"""Each sample of a stream once, in global batches that know nothing of ranks, over any number of interruptions."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import airflow_elastic.runtime as elastic
from airflow_elastic.runtime.data import Feed
from airflow_elastic.runtime.lanes import Spot
from airflow_elastic.runtime.portions import Portion
from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.runtime.sampler import order_of
from airflow_elastic.runtime.stream import Plan, ShardedStream, epoch_of
from airflow_elastic.spec.errors import InvalidInput
from tests.support.threads import together

DATA = Path(__file__).parents[2] / "docs" / "data.md"

Batch = frozenset[tuple[int, int]]


def stream_of(lengths: list[int], lanes: int) -> ShardedStream:
    def read(shard: int, offset: int) -> Iterator[tuple[int, int]]:
        return ((shard, number) for number in range(offset, lengths[shard]))

    return ShardedStream(range(len(lengths)), read, lanes=lanes)


def plan_of(global_batch: int, micro_batch: int | None = None, **options: Any) -> Plan:
    return Plan(global_batch, micro_batch, seed=3, shuffle=True, options={"collate_fn": list, **options})


def consume(
    stream: ShardedStream, plan: Plan, ranks: Ranks, batches: int, offset: int = 0
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

        def life(ranks: Ranks, state: Any = state, batches: int = batches) -> Any:
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
    seen = [counted([batch]) for batch in consume(stream, plan, Ranks(0, 1, None), 2)]
    assert stream.state_dict()["turn"] == 2 * 32 % 6
    assert sum(counted_in(stream, lengths)) == 2 * 32
    seen += [counted([batch]) for batch in consume(stream, plan, Ranks(0, 1, None), 10**6, 2 * 32)]
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

    def work(ranks: Ranks) -> None:
        def read(shard: int, offset: int) -> Iterator[int]:
            for number in range(offset, lengths[shard]):
                reads[ranks.rank] += 1
                yield number

        consume(ShardedStream(range(12), read, lanes=12), plan_of(24), ranks, 5)

    together(3, work)
    assert all(5 * 8 <= count <= (5 + 4) * 8 + 4 for count in reads), reads


def test_epochs_have_orders_of_their_own_and_shards_end() -> None:
    stream, plan = stream_of([4, 4, 4, 0, 4], 2), plan_of(6)
    first = consume(stream, plan, Ranks(0, 1, None), 10**6)
    stream.spot = Spot.first(1, stream.lanes)
    second = consume(stream, plan, Ranks(0, 1, None), 10**6)
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
    consume(begun, plan_of(2), Ranks(0, 1, None), 1)
    state = begun.state_dict()
    with pytest.raises(InvalidInput, match=r"3 shards in 2 lanes .* the script has 4 shards in 2 lanes"):
        stream_of([3, 3, 3, 3], 2).load_state_dict(state)
    with pytest.raises(InvalidInput, match=r"in 2 lanes .* the script has 3 shards in 3 lanes"):
        stream_of([3, 3, 3], 8).load_state_dict(state)
    with pytest.raises(InvalidInput, match="0 shards"):
        stream_of([], 8)


def test_what_can_only_be_iterated_is_consumed_once_as_the_documentation_has_it() -> None:
    (recipe,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", DATA.read_text(), re.DOTALL)
        if "slice_n" in block
    )

    def life(ranks: Ranks, state: Any, batches: int) -> Any:
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


class Endless(torch.utils.data.IterableDataset[int]):
    """Has neither shards nor an offset."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def feed() -> Feed:
    return Feed(Ranks(0, 1, None), None, lambda steps: None)


def loaded(feed: Feed, data: Any, **changes: Any) -> Iterator[Any]:
    options: dict[str, Any] = {"epochs": 1, "seed": 0, "shuffle": False, "micro_batch": None}
    options |= {"dynamic": False, "even_pieces": False, "options": {}}
    return feed.batches(data, **{"global_batch": 6, **options, **changes})


def test_what_cannot_be_gone_on_with_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Endless has no length and no index"):
        loaded(feed(), Endless())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"options": {"batch_size": 3}}, r"batch_size: given 3; allowed: nothing, as .* micro_batch"),
        ({"options": {"sampler": [1]}}, r"sampler: given \[1\]; allowed: nothing, as .* seed and shuffle"),
        ({"options": {"drop_last": True}}, "drop_last: given True; allowed: nothing"),
        ({"global_batch": 0}, "global_batch: given 0; allowed: a whole number from 1"),
        ({"global_batch": "4"}, "global_batch: given '4'"),
        ({"micro_batch": 0}, "micro_batch: given 0"),
        ({"epochs": 1.5}, r"epochs: given 1\.5; allowed: a whole number from 0"),
        ({"seed": None}, "seed: given None; allowed: a whole number$"),
    ],
)
def test_what_a_loader_cannot_be_told_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^run\.loader: {said}"):
        loaded(feed(), torch.arange(15), **given)


def test_a_loader_may_be_told_what_is_so_anyway() -> None:
    usual = {"drop_last": False, "sampler": None, "batch_sampler": None, "batch_size": 1}
    numbers = {"global_batch": numpy.int64(6), "micro_batch": torch.tensor(6), "epochs": numpy.int32(1)}
    assert len(list(loaded(feed(), torch.arange(15), options=usual, **numbers))) == 3


def test_the_position_is_of_what_was_stepped_with_not_of_what_was_fetched() -> None:
    one, data = feed(), torch.arange(15)
    batches = loaded(one, data)
    for _ in range(3):
        next(batches)
    assert one.position.offset == 0
    for step, offset in enumerate((6, 12, 15), 1):
        one.stepped(step)
        assert (one.position.offset, one.position.samples) == (offset, offset)
    one.stepped(4)  # a step of the script's own
    assert one.position.samples == 15


def test_a_step_that_is_not_due_is_refused() -> None:
    one = feed()
    batches = loaded(one, torch.arange(15), micro_batch=4)
    assert (len(next(batches)), one.step_due, one.weight) == (3, False, 0.5)
    with pytest.raises(InvalidInput, match=r"run\.step_due"):
        one.stepped(1)
    assert (len(next(batches)), one.step_due) == (3, True)
    one.stepped(1)
    assert one.position.offset == 6


@pytest.mark.parametrize("several", [2, 4])
def test_a_script_that_tells_of_fewer_steps_than_it_gets_batches_is_refused(several: int) -> None:
    """Its position would stay behind, and what it has trained on would come again after a restart."""
    one = feed()

    def train() -> None:
        for number, _ in enumerate(loaded(one, torch.arange(6 * 500)), 1):
            if number % several == 0:
                one.stepped(number)

    with pytest.raises(
        InvalidInput, match=r"given [12]\d\d global batches, .* to accumulate gradients of several"
    ):
        train()


def test_of_pieces_that_are_handed_out_as_ranks_come_all_steps_are_to_be_told() -> None:
    one = feed()

    def train() -> None:
        for number, _ in enumerate(loaded(one, torch.arange(6 * 500), micro_batch=6, dynamic=True), 1):
            one.finish_piece()
            if number % 4 == 0:
                one.stepped(number)

    with pytest.raises(InvalidInput, match=r"given 1[67]. global batches"):
        train()


def test_steps_that_are_not_told_in_one_epoch_are_counted_in_the_next() -> None:
    """Of a script with a loader for each, all of which are short."""
    one = feed()

    def train() -> None:
        for epoch in range(100):
            for number, _ in enumerate(loaded(one, torch.arange(6 * 30), epochs=epoch + 1), 1):
                if number % 4 == 0:
                    one.stepped(number)

    with pytest.raises(InvalidInput, match=r"given 1[67]. global batches"):
        train()


def test_what_a_loader_has_fetched_ahead_when_it_is_left_was_not_given() -> None:
    one, steps = feed(), 0
    while steps < 1000:
        batches = loaded(one, torch.arange(6 * 1000))
        ahead = [next(batches) for _ in range(4)]
        for _ in range(10):
            steps += 1
            one.stepped(steps)
            ahead.append(next(batches, None))
    assert one.position.samples == 6000


def test_whoever_looks_at_the_data_before_each_epoch_is_not_refused() -> None:
    one, data, steps = feed(), torch.arange(6 * 100), 0
    for epoch in range(6):
        assert len(list(loaded(one, data, epochs=epoch + 1))) == 100
        for _ in loaded(one, data, epochs=epoch + 1):
            steps += 1
            one.stepped(steps)
    assert one.position.samples == 3600


def test_two_loaders_at_a_time_are_refused() -> None:
    one, data = feed(), torch.arange(6 * 500)

    def train() -> None:
        for step, _ in enumerate(zip(loaded(one, data), loaded(one, data), strict=True), 1):
            one.stepped(step)

    with pytest.raises(InvalidInput, match="go through one loader at a time"):
        train()


def test_a_batch_that_is_left_out_now_and_then_ends_nothing() -> None:
    """Nor does a look at the data, before."""
    one = feed()
    for _ in range(2):
        assert len(list(loaded(one, torch.arange(6 * 500)))) == 500
    for number, _ in enumerate(loaded(one, torch.arange(6 * 1000)), 1):
        if number % 10:
            one.stepped(number)


def test_pieces_that_are_handed_out_as_ranks_come() -> None:
    one = feed()
    batches = loaded(one, torch.arange(15), micro_batch=4, dynamic=True)
    seen: list[list[int]] = []
    due: list[bool] = []
    for batch in batches:
        assert (one.may_go_on, one.step_due) == (True, False)
        due.append(one.finish_piece())
        seen.append(batch.tolist())
        if one.step_due:
            one.stepped(len(seen))
    assert seen == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]]
    assert due == [False, True, False, True, True]
    assert one.position.offset == 15


@pytest.mark.parametrize(
    ("data", "changes"),
    [
        (torch.arange(15), {}),
        (torch.arange(15), {"micro_batch": 4, "options": {"num_workers": 1}}),
        (stream_of([3], 1), {"micro_batch": 4}),
    ],
    ids=["no pieces", "workers", "stream"],
)
def test_what_cannot_be_handed_out_as_ranks_come_is_refused(data: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="needs data with an index, micro_batch, and num_workers=0"):
        loaded(feed(), data, dynamic=True, **changes)


def test_a_piece_that_nobody_said_to_be_done_is_not_followed_by_another() -> None:
    batches = loaded(feed(), torch.arange(15), micro_batch=4, dynamic=True)
    next(batches)
    with pytest.raises(InvalidInput, match=r"run\.accumulate"):
        next(batches)
