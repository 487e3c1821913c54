"""How a rank's part of a sharded tensor is cut: so that ranks of other world sizes read what lies together."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.runtime import loading, staging
from airflow_elastic.runtime.bands import cuts
from airflow_elastic.runtime.filling import Filling
from airflow_elastic.runtime.needs import Stored, parts
from airflow_elastic.spec.index import BLOCK_BYTES, Index

MEGABYTE = 1 << 20


def shard(rows: int, ranks: int, rank: int) -> tuple[int, int]:
    """The first row of a rank's part, and how many: as torch cuts them."""
    each = -(-rows // ranks)
    begin = min(rank * each, rows)
    return begin, min(each, rows - begin)


@given(st.integers(1, 5000), st.integers(1, 70), st.integers(0, 69), st.integers(0, 100 * MEGABYTE))
def test_a_part_is_cut_inside_of_it_and_into_no_more_than_sixteen(
    rows: int, ranks: int, rank: int, size: int
) -> None:
    begin, count = shard(rows, ranks, rank % ranks)
    found = cuts(rows, begin, count, ranks, size)
    assert list(found) == sorted(set(found))
    assert all(0 < at < count for at in found)
    assert len(found) < max(1, min(16, 2 * size // MEGABYTE)), "bands of less than half a megabyte"


def test_where_half_or_twice_as_many_ranks_begin_it_is_cut() -> None:
    rows = 1539
    for ranks in range(2, 9):
        ends = {0, rows}
        for rank in range(ranks):
            begin, count = shard(rows, ranks, rank)
            ends |= {begin, *(begin + at for at in cuts(rows, begin, count, ranks, 100 * MEGABYTE))}
        for others in range(-(-ranks // 2), 2 * ranks + 1):
            assert {shard(rows, others, rank)[0] for rank in range(others)} <= ends, (ranks, others)


def test_a_part_of_a_large_world_is_cut_evenly() -> None:
    assert cuts(6400, 100, 100, 64, 100 * MEGABYTE) == tuple(100 * at // 16 for at in range(1, 16))


def test_what_is_small_and_what_one_rank_has_alone_stays_whole() -> None:
    assert cuts(1000, 0, 500, 2, MEGABYTE - 1) == ()
    assert cuts(1000, 0, 1000, 1, 100 * MEGABYTE) == ()


def saved_by(ranks: int, tensors: list[tuple[int, int]]) -> dict[str, Index]:
    """What each of so many ranks keeps of these tensors, of so many rows and floats each; by its file."""
    found = {}
    for rank in range(ranks):
        mine = []
        for number, (rows, floats) in enumerate(tensors):
            begin, count = shard(rows, ranks, rank)
            local = torch.empty(count, floats, device="meta")
            part = staging._Part(f"t{number}", local, (rows, floats), (begin, 0), True)
            edges = cuts(rows, begin, count, ranks, part.size)
            mine += staging._bands(part, edges) if edges else [part]
        found[f"rank-{rank}.bin"] = staging._arrange(mine, []).kept
    return found


def needed_by(
    rank: int, ranks: int, tensors: list[tuple[int, int]], saved: dict[str, Index]
) -> tuple[int, int, int]:
    """How many requests a rank makes, how many bytes they bring, and how many it needs."""
    entries = {
        f"t{number}": [
            Stored(key, piece, BLOCK_BYTES)
            for key, one in saved.items()
            for piece in one.pieces
            if piece.key == f"t{number}"
        ]
        for number in range(len(tensors))
    }
    files: dict[str, list[loading.Stretch]] = {}
    needed = 0
    for number, (rows, floats) in enumerate(tensors):
        begin, count = shard(rows, ranks, rank)
        needed += count * floats * 4
        for need in parts(torch.empty(count, floats, device="meta"), (begin, 0), entries[f"t{number}"]):
            files.setdefault(need.stored.file, []).extend(Filling(need, "").stretches(need.stored.entry.at))
    runs = [run for some in files.values() for run in loading._runs(some, 64 * MEGABYTE)]
    return len(runs), sum(run[-1].place + run[-1].size - run[0].place for run in runs), needed


def test_ranks_of_another_world_size_read_what_lies_together() -> None:
    tensors = [(1539, 1539), (1024, 4096), (3000, 1000)] * 36
    for ranks, others in ((2, 4), (4, 2), (3, 5), (3, 2), (2, 3), (4, 3)):
        saved = saved_by(ranks, tensors)
        for rank in range(others):
            requests, read, needed = needed_by(rank, others, tensors, saved)
            assert requests <= 2 * needed // (64 * MEGABYTE) + 4, (ranks, others, rank)
            assert read <= 1.1 * needed, (ranks, others, rank)


def test_one_worker_of_eight_less_reads_little_in_vain() -> None:
    tensors = [(16384, 8192), (8192, 16384)] * 12
    saved = saved_by(64, tensors)
    for rank in range(56):
        requests, read, needed = needed_by(rank, 56, tensors, saved)
        assert requests <= 8
        assert read <= 1.3 * needed
