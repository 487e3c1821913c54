"""Each sample of an epoch once, in one order, at any world size and over any number of interruptions."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.runtime.data.sampler import ElasticBatches


def shares(world: int, **options: int) -> list[list[list[int]]]:
    """By global batch, then by rank."""
    by_rank = [list(ElasticBatches(rank=rank, world_size=world, **options)) for rank in range(world)]  # type: ignore[arg-type]
    return [list(batch) for batch in zip(*by_rank, strict=True)]


sizes = {
    "length": st.integers(1, 200),
    "global_batch": st.integers(1, 50),
    "seed": st.integers(0, 9),
    "epoch": st.integers(0, 9),
}


@given(
    worlds=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    cuts=st.randoms(use_true_random=False),
    **sizes,
)
def test_exactly_once_whatever_the_world_sizes(
    worlds: list[int], cuts, length: int, global_batch: int, seed: int, epoch: int
) -> None:  # type: ignore[no-untyped-def]
    offset, seen, size = 0, [], min(global_batch, length)
    for world in worlds:
        batches = shares(
            world, length=length, global_batch=global_batch, seed=seed, epoch=epoch, offset=offset
        )
        taken = batches if world is worlds[-1] else batches[: cuts.randint(0, len(batches))]
        for batch in taken:
            size = min(global_batch, length - offset)
            real = [
                index
                for rank, share in enumerate(batch)
                if size * (rank + 1) // world > size * rank // world
                for index in share
            ]
            assert len(real) == size
            seen += real
            offset += size
    assert offset == length or worlds
    order = [
        index
        for batch in shares(1, length=length, global_batch=length, seed=seed, epoch=epoch)
        for index in batch[0]
    ]
    assert seen == order[: len(seen)]
    if offset == length:
        assert sorted(seen) == list(range(length))


@given(world=st.integers(1, 9), size=st.integers(1, 50))
def test_weights_make_the_mean_over_ranks_the_mean_over_samples(world: int, size: int) -> None:
    ranks = [ElasticBatches(size, global_batch=size, rank=rank, world_size=world) for rank in range(world)]
    assert sum(rank.weight(size) for rank in ranks) / world == pytest.approx(1.0)
    for rank in ranks:
        low, high = rank.share(size)
        assert rank.weight(size) == pytest.approx((high - low) / (size / world))


@given(
    world=st.integers(1, 9),
    length=st.integers(1, 120),
    global_batch=st.integers(1, 50),
    micro_batch=st.integers(1, 12),
)
def test_pieces_are_the_share_and_as_many_on_every_rank(
    world: int, length: int, global_batch: int, micro_batch: int
) -> None:
    options = {"global_batch": global_batch, "world_size": world, "epoch": 2}
    plans = []
    for rank in range(world):
        whole = ElasticBatches(length, rank=rank, **options)  # type: ignore[arg-type]
        parts = ElasticBatches(length, rank=rank, micro_batch=micro_batch, **options)  # type: ignore[arg-type]
        plan, pieces = list(parts.plan()), list(parts)
        assert len(parts) == len(plan) == len(pieces)
        assert all(1 <= len(piece) <= micro_batch for piece in pieces)
        given = [piece for step, piece in zip(plan, pieces, strict=True) if step.weight]
        counts = [share for step, share in zip(whole.plan(), whole, strict=True) if step.weight]
        assert list(chain(*given)) == list(chain(*counts))
        plans.append(plan)
    for pieces in zip(*plans, strict=True):
        assert len({(piece.start, piece.size, piece.last) for piece in pieces}) == 1
    weight = sum(piece.weight for plan in plans for piece in plan)
    assert weight / world == pytest.approx(sum(piece.last for piece in plans[0]))


def test_another_epoch_is_another_order_and_no_shuffle_is_none() -> None:
    first, second = (next(iter(ElasticBatches(100, global_batch=100, epoch=epoch))) for epoch in (0, 1))
    assert first != second
    assert next(iter(ElasticBatches(5, global_batch=5, shuffle=False))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"offset": 11}, "another data set"),
        ({"rank": 2, "world_size": 2}, "rank 2"),
        ({"global_batch": 0}, "at least 1"),
        ({"micro_batch": 0}, "micro_batch 0"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ElasticBatches(**{"length": 10, "global_batch": 2, **options})  # type: ignore[arg-type]
