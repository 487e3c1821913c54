"""How a rank's part of a sharded tensor is cut: so that ranks of other world sizes read what lies together."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.adapters.records import checksums
from airflow_elastic.runtime.checkpoint.format import row_bands
from airflow_elastic.runtime.checkpoint.format.file_layout import Extent, lay_out_file
from airflow_elastic.runtime.checkpoint.format.row_bands import cuts
from airflow_elastic.runtime.checkpoint.read import load
from airflow_elastic.runtime.checkpoint.read.fill import ItemReader
from airflow_elastic.runtime.checkpoint.read.read_plan import StoredEntry, parts
from airflow_elastic.runtime.checkpoint.save import staging
from airflow_elastic.runtime.tiers import shared_memory
from airflow_elastic.runtime.tiers.shared_memory import Note
from airflow_elastic.spec.checkpoints.index import BLOCK_BYTES, Index, blocks

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
    assert len(found) < max(1, min(16, 2 * size // MEGABYTE)), (
        "bands of less than half a megabyte on the average"
    )


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


def extent(number: int, whole: tuple[int, int], dtype: torch.dtype, ranks: int, rank: int) -> Extent:
    """The part of a tensor that one of so many ranks has."""
    (rows, floats), (begin, count) = whole, shard(whole[0], ranks, rank)
    return Extent(f"t{number}", dtype, (rows, floats), (begin, 0), (count, floats), ranks)


def saved_by(ranks: int, tensors: list[tuple[int, int]]) -> dict[str, Index]:
    """What each of so many ranks keeps of these tensors, of so many rows and floats each; by its file."""
    found = {}
    for rank in range(ranks):
        mine = tuple(extent(at, whole, torch.float32, ranks, rank) for at, whole in enumerate(tensors))
        found[f"rank-{rank}.bin"] = Index(lay_out_file(mine).pieces, ())
    return found


def needed_by(
    rank: int, ranks: int, tensors: list[tuple[int, int]], saved: dict[str, Index]
) -> tuple[int, int, int]:
    """How many requests a rank makes, how many bytes they bring, and how many it needs."""
    entries = {
        f"t{number}": [
            StoredEntry(key, piece, BLOCK_BYTES)
            for key, one in saved.items()
            for piece in one.pieces
            if piece.key == f"t{number}"
        ]
        for number in range(len(tensors))
    }
    files: dict[str, list[load.BlockRange]] = {}
    needed = 0
    for number, (rows, floats) in enumerate(tensors):
        begin, count = shard(rows, ranks, rank)
        needed += count * floats * 4
        for need in parts(torch.empty(count, floats, device="meta"), (begin, 0), entries[f"t{number}"]):
            files.setdefault(need.stored.file, []).extend(
                ItemReader(need, "").stretches(need.stored.entry.at)
            )
    runs = [run for some in files.values() for run in load._runs(some, 64 * MEGABYTE)]
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


DTYPES = (torch.bfloat16, torch.float64, torch.uint8)
ROWS = (97, 40, 5)


@given(st.integers(1, 6), st.integers(1, 8), st.permutations(range(3)))
def test_whoever_reads_bands_has_the_bytes_that_were_saved(ranks: int, others: int, order: list[int]) -> None:
    cuts.cache_clear()
    lay_out_file.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_bands, "_LEAST_BYTES", 24)
        saved = [torch.arange(ROWS[i] * 7).view(-1, 7).to(DTYPES[i]) for i in order]
        stored, contents = stored_by(ranks, saved)
    cuts.cache_clear()
    lay_out_file.cache_clear()
    assert ranks == 1 or sum(map(len, stored.values())) > 3 * ranks, "nothing was cut"
    for rank in range(others):
        for number, whole in enumerate(saved):
            begin, count = shard(len(whole), others, rank)
            room = torch.zeros_like(whole[begin : begin + count])
            for need in parts(room, (begin, 0), stored[f"t{number}"]):
                filling, data = ItemReader(need, ""), contents[need.stored.file]
                for one in filling.stretches(need.stored.entry.at):
                    filling.take(one.at, one.end, io.BytesIO(data[one.place : one.place + one.size]))
            assert torch.equal(room, whole[begin : begin + count])


def stored_by(ranks: int, saved: list[torch.Tensor]) -> tuple[dict[str, list[StoredEntry]], dict[str, bytes]]:
    """What each of so many ranks has written of these tensors: the entries of each, and the bytes of each file."""
    stored: dict[str, list[StoredEntry]] = {f"t{number}": [] for number in range(len(saved))}
    contents = {}
    for rank in range(ranks):
        mine: list[staging._Found] = []
        for number, whole in enumerate(saved):
            begin, count = shard(len(whole), ranks, rank)
            one = extent(number, (len(whole), whole.shape[1]), whole.dtype, ranks, rank)
            mine.append(staging._Found(one, number, whole[begin : begin + count], True, False))
        places = staging._arrange(mine, 0, [], stays=True)
        layout = places.of([one.tensor for one in mine], [])
        assert layout is not None
        memory = bytearray(layout.total_bytes)
        layout.copy_into(memoryview(memory))
        contents[str(rank)] = bytes(memory)
        for piece in layout.kept.pieces:
            data = memory[piece.at : piece.at + piece.size]
            sums = tuple(checksums.of(bytes(data[a:b])) for a, b in blocks(len(data), 16))
            stored[piece.key].append(StoredEntry(str(rank), replace(piece, checksums=sums), 16))
    return stored, contents


def test_there_is_room_for_the_note_of_a_large_model() -> None:
    """Who finds none has the whole slot mapped once more, while training waits."""
    kinds = [torch.bfloat16, torch.float32, torch.float32]  # weights, and what AdamW keeps of them
    shapes = [
        (128256, 4096),
        *[(4096, 4096)] * 64,
        *[(1024, 4096)] * 64,
        *[(14336, 4096)] * 64,
        *[(4096, 14336)] * 32,
    ]
    for ranks in (2, 8, 16, 64):
        name = "optimizer.state.model.layers.{}.feed_forward.w1.weight.exp_avg_sq"
        mine = [
            extent(number, whole, kind, ranks, 1)._replace(key=name.format(number))
            for number, whole in enumerate(shapes)
            for kind in kinds
        ]
        stored = lay_out_file(tuple(mine))
        note = Note(
            step=1,
            generation=1,
            rank=1,
            world_size=ranks,
            epoch=0,
            offset=0,
            samples=0,
            reason="steps",
            kept_bytes=stored.end,
            kept=Index(stored.pieces, ()),
            rest=Index((), ()),
            metrics={},
            account=None,
            versions={},
        )
        room = shared_memory._file_bytes(stored.end) - shared_memory.HEADER_BYTES - stored.end
        assert len(shared_memory._encoded(note)) < room, ranks
