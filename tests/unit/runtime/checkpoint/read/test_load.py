"""What is read in blocks, by several threads, at one go or at many, is what was stored."""

from __future__ import annotations

import errno
import io
import itertools
import json
import math
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.adapters.records import checkpoints, checksums
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.adapters.storage.store import Reader
from airflow_elastic.runtime.checkpoint.read import fill as filling
from airflow_elastic.runtime.checkpoint.read import load
from airflow_elastic.runtime.checkpoint.read.fill import BlockRange, ItemReader
from airflow_elastic.runtime.checkpoint.read.load import StateLoader
from airflow_elastic.runtime.checkpoint.read.read_plan import StoredEntry, parts
from airflow_elastic.runtime.checkpoint.read.reader import CheckpointReader
from airflow_elastic.runtime.checkpoint.restore.available import read_indexes
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.tiers.storage import checkpoint_files
from airflow_elastic.spec.checkpoints import index
from airflow_elastic.spec.checkpoints.index import Index, TensorChunk
from airflow_elastic.spec.codec import decode
from tests.support.training.saving import SavingWorker


class Near(FolderStore):
    """Tells what of it is asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[tuple[str, int, int]] = []

    @contextmanager
    def stream(self, key: str, start: int, size: int) -> Iterator[Reader]:
        self.asked.append((key, start, size))
        with super().stream(key, start, size) as reader:
            yield reader


class Far(Near):
    """A folder that is no folder of this machine, and gives what is asked for in dribs and drabs."""

    def local_path(self, key: str) -> Path | None:
        return None

    @contextmanager
    def stream(self, key: str, start: int, size: int) -> Iterator[Reader]:
        with super().stream(key, start, size) as reader:
            yield _Drip(reader)


class _Drip:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def readinto(self, room: memoryview) -> int:
        return self._reader.readinto(room[:37])


def model(seed: int) -> torch.nn.Module:
    """Tensors of some bytes and of some thousand."""
    luck = random.Random(seed)
    parts = [torch.nn.Linear(luck.randint(1, 40), luck.randint(1, 40)) for _ in range(12)]
    return torch.nn.ModuleList([*parts, torch.nn.BatchNorm1d(3)])


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(checkpoint_files, "BLOCK_BYTES", 100)
    monkeypatch.setattr(filling, "_STRETCH_BYTES", 300)
    return 300


@pytest.mark.parametrize(
    ("far", "run", "gap"),
    [(True, 1 << 24, 1 << 20), (True, 1000, 100), (True, 64, 0), (True, 1, 0), (False, 0, 0)],
)
def test_what_is_read_at_any_number_of_goes_is_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: int, run: int, gap: int, far: bool
) -> None:
    monkeypatch.setattr(load, "_REQUEST_BYTES", run)
    monkeypatch.setattr(load, "_GAP_BYTES", gap)
    monkeypatch.setattr(filling, "_SCRATCH_BYTES", 30)
    saved = model(3)
    SavingWorker(str(tmp_path)).save(Stateful(saved, (), {}), 1, Position(), reason="script", metrics={})
    store: Far = Far(tmp_path)
    manifest = checkpoints.read(store, 1)
    # Some of it only: what lies between is not wanted.
    wanted = {f"model.{name}": value for i, (name, value) in enumerate(saved.state_dict().items()) if i % 3}
    state = {name: torch.zeros_like(value) for name, value in wanted.items()}
    plan = CheckpointReader(manifest, read_indexes(store, manifest)).plan(state, {})
    plan.read(store if far else FolderStore(tmp_path), processors=2)
    for name, value in wanted.items():
        assert torch.equal(state[name], value), name
    if far:
        sizes = [size for _, _, size in store.asked]
        assert max(sizes) <= max(run, small_blocks)
        if run == 1 << 24:
            assert len(sizes) == 1, "neighbours come with one request"


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("processors", [1, 2, 3])
def test_a_file_of_this_machine_is_read_in_one_piece_by_each_thread(tmp_path: Path, processors: int) -> None:
    """Though of each tensor a part alone is wanted: where somebody begins anew, nothing is read ahead."""
    saved = torch.nn.ModuleList([torch.nn.Linear(20, 40, bias=False) for _ in range(9)])
    SavingWorker(str(tmp_path)).save(Stateful(saved, (), {}), 1, Position(), reason="script", metrics={})
    store, told = Near(tmp_path), list[tuple[int, int]]()
    manifest = checkpoints.read(store, 1)
    stored = CheckpointReader(manifest, read_indexes(store, manifest))._stored
    rooms = {name: torch.zeros(15, 20) for name in stored if name.startswith("model.")}
    needs = [need for name, room in rooms.items() for need in parts(room, (5, 0), stored[name])]
    plan = StateLoader(needs, manifest, {})
    plan.read(store, lambda done, whole: told.append((done, whole)), processors)
    for name, room in rooms.items():
        assert torch.equal(room, saved.state_dict()[name.removeprefix("model.")][5:20])
    assert len(store.asked) == processors
    assert sorted(told) == told
    assert (told[0], told[-1]) == ((0, plan.file_bytes), (plan.file_bytes, plan.file_bytes))
    assert len(told) > 8


@pytest.mark.usefixtures("small_blocks")
def test_where_something_is_damaged_nobody_reads_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file that takes minutes to read."""
    saved = torch.nn.ModuleList([torch.nn.Linear(20, 40, bias=False) for _ in range(9)])
    SavingWorker(str(tmp_path)).save(Stateful(saved, (), {}), 1, Position(), reason="script", metrics={})
    store, over, begun, read = FolderStore(tmp_path), threading.Event(), itertools.count(), list[int]()
    manifest = checkpoints.read(store, 1)
    (file,) = tmp_path.glob("checkpoints/data/**/*.bin")
    file.write_bytes(b"\1" * file.stat().st_size)

    class Late(FolderStore):
        """What is not asked for first comes when reading is over."""

        @contextmanager
        def stream(self, key: str, start: int, size: int) -> Iterator[Reader]:
            with super().stream(key, start, size) as reader:
                if next(begun) > 0:
                    assert over.wait(60)
                yield reader

    class Pool(ThreadPoolExecutor):
        def shutdown(self, *args: Any, **more: Any) -> None:
            over.set()
            super().shutdown(*args, **more)

    take = filling.ItemReader.take
    monkeypatch.setattr(
        filling.ItemReader, "take", lambda self, at, *args: (read.append(at), take(self, at, *args))
    )
    monkeypatch.setattr(load, "ThreadPoolExecutor", Pool)
    state = {f"model.{name}": value for name, value in saved.state_dict().items()}
    with pytest.raises(CheckpointDamaged):
        CheckpointReader(manifest, read_indexes(store, manifest)).plan(state, {}).read(
            Late(tmp_path), processors=2
        )
    assert len(read) == 1


@pytest.mark.parametrize("far", [False, True])
def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path: Path, far: bool) -> None:
    """Whoever looks once more whether it is damaged looks at those that are named."""

    class Shrinking(Far if far else Near):  # type: ignore[misc]
        @contextmanager
        def stream(self, key: str, start: int, size: int) -> Iterator[Reader]:
            with super().stream(key, start, size - 1) as reader:
                yield reader

    saved = model(3)
    SavingWorker(str(tmp_path)).save(Stateful(saved, (), {}), 1, Position(), reason="script", metrics={})
    manifest = checkpoints.read(store := Shrinking(tmp_path), 1)
    state = {f"model.{name}": torch.zeros_like(value) for name, value in saved.state_dict().items()}
    plan = CheckpointReader(manifest, read_indexes(FolderStore(tmp_path), manifest)).plan(state, {})
    with pytest.raises(CheckpointDamaged, match=r"rank-00000\.bin ends before its end"):
        plan.read(store)


def test_trouble_of_whoever_is_told_is_no_damage(tmp_path: Path) -> None:
    """E.g. of a log whose disk is full."""
    SavingWorker(str(tmp_path)).save(Stateful(model(1), (), {}), 1, Position(), reason="script", metrics={})
    store = FolderStore(tmp_path)
    manifest = checkpoints.read(store, 1)
    state = {f"model.{name}": value for name, value in model(1).state_dict().items()}

    def tell(done: int, whole: int) -> None:
        if done:
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        CheckpointReader(manifest, read_indexes(store, manifest)).plan(state, {}).read(store, tell)


@given(
    files=st.lists(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=20), max_size=4),
    count=st.integers(1, 4),
)
def test_shares_are_all_of_it_once_and_in_order(files: list[list[tuple[int, int]]], count: int) -> None:
    """Also of an index that has entries lie upon each other."""
    nothing: Any = None
    sources: list[Any] = [
        (str(number), [BlockRange(nothing, 0, size, place) for place, size in found])
        for number, found in enumerate(files)
    ]
    shares = load._shares(sources, count)
    flat = [(source, one) for share in shares for source, run in share for one in run]
    assert flat == [
        (name, one) for name, found in sources for one in sorted(found, key=lambda one: one.place)
    ]
    each = [sum(one.size for _, run in share for one in run) for share in shares]
    assert sum(size > 0 for size in each) <= count
    assert max(each, default=0) <= -(-sum(each) // count) + 9
    for _, run in (one for share in shares for one in share):
        assert all(one.place + one.size <= then.place for one, then in itertools.pairwise(run))


def flat_pieces(indexes: dict[str, bytes]) -> list[TensorChunk]:
    return [piece for data in indexes.values() for piece in decode(Index, json.loads(data)).pieces]


@pytest.mark.usefixtures("small_blocks")
def test_a_flipped_bit_in_any_block_is_found(tmp_path: Path) -> None:
    saved = torch.nn.Linear(30, 30, bias=False)
    SavingWorker(str(tmp_path)).save(Stateful(saved, (), {}), 1, Position(), reason="script", metrics={})
    store = FolderStore(tmp_path)
    manifest = checkpoints.read(store, 1)
    indexes = read_indexes(store, manifest)
    (file,) = tmp_path.glob("checkpoints/data/**/*.bin")
    good = file.read_bytes()
    (piece,) = (one for one in flat_pieces(indexes) if one.key == "model.weight")
    for at in range(piece.at, piece.at + piece.size, 90):
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(CheckpointDamaged, match=r"model.weight .*its bytes have changed"):
            CheckpointReader(manifest, indexes).plan({"model.weight": torch.zeros(30, 30)}, {}).read(store)


@st.composite
def slices(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """A shape, and a part of it: offsets and lengths."""
    shape = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    offsets = [draw(st.integers(0, size - 1)) for size in shape]
    lengths = [draw(st.integers(1, size - at)) for size, at in zip(shape, offsets, strict=True)]
    if draw(st.booleans()):  # rows, whole: the usual case
        offsets[1:], lengths[1:] = [0] * len(shape[1:]), shape[1:]
    return shape, offsets, lengths


@given(
    slices(),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 2**30),
    st.booleans(),
    st.sampled_from([4, 16, 20, 48, 100]),
)
def test_of_an_entry_only_the_blocks_are_read_that_are_needed(
    part: tuple[list[int], list[int], list[int]], dtype: torch.dtype, seed: int, strided: bool, block: int
) -> None:
    shape, offsets, lengths = part
    stored = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    data = stored.numpy().tobytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filling, "_STRETCH_BYTES", 48)
        sums = tuple(checksums.of(data[a:b]) for a, b in index.blocks(len(data), block))
        whole = tuple(shape)
        piece = TensorChunk("a", "float32", whole, (0,) * len(shape), whole, 0, len(data), sums)
        target = (
            torch.zeros([*lengths, 2], dtype=dtype)[..., 0] if strided else torch.zeros(lengths, dtype=dtype)
        )
        (need,) = parts(target, tuple(offsets), [StoredEntry("file", piece, block)])
        one_entry = ItemReader(need, "here")
        for one in reversed(one_entry.stretches(0)):
            one_entry.take(one.at, one.end, io.BytesIO(data[one.at : one.end]))
        expected = stored
        for dim, (at, size) in enumerate(zip(offsets, lengths, strict=True)):
            expected = expected.narrow(dim, at, size)
        assert torch.equal(target, expected.to(dtype))
        stretches = one_entry.stretches(0)
        assert [one.at % block for one in stretches] == [0] * len(stretches), "each begins where a block does"
        if lengths[1:] == shape[1:]:
            row = len(data) // shape[0]
            needed = -(-(offsets[0] + lengths[0]) * row // block) - offsets[0] * row // block
            assert sum(-(-one.size // block) for one in stretches) == needed


@st.composite
def cut(draw: st.DrawFn) -> tuple[list[int], list[tuple[list[int], list[int]]]]:
    """A shape, and boxes that make it up: offsets and lengths."""
    shape = draw(st.lists(st.integers(1, 9), max_size=3))
    boxes: list[tuple[list[int], list[int]]] = [([], [])]
    for size in shape:
        ends = sorted({*draw(st.sets(st.integers(1, size), max_size=3)), size})
        spans = [(low, high - low) for low, high in zip([0, *ends], ends, strict=False)]
        boxes = [([*at, low], [*of, length]) for at, of in boxes for low, length in spans]
    return shape, draw(st.permutations(boxes))


@given(cut(), st.data())
def test_whatever_the_pieces_a_part_of_a_tensor_is_made_up_of_them(
    saved: tuple[list[int], list[tuple[list[int], list[int]]]], data: st.DataObject
) -> None:
    shape, boxes = saved
    whole = torch.arange(math.prod(shape)).view(shape)
    contents = [box(whole, *each).numpy().tobytes() for each in boxes]
    stored = [
        StoredEntry(
            str(i), TensorChunk("a", "int64", tuple(shape), tuple(at), tuple(of), 0, len(content), sums), 16
        )
        for i, ((at, of), content) in enumerate(zip(boxes, contents, strict=True))
        for sums in [tuple(checksums.of(content[low:high]) for low, high in index.blocks(len(content), 16))]
    ]
    offsets = [data.draw(st.integers(0, size - 1)) for size in shape]
    lengths = [data.draw(st.integers(1, size - at)) for size, at in zip(shape, offsets, strict=True)]
    kind = data.draw(st.sampled_from(["as stored", "strided", "of another dtype"]))
    target = torch.full([*lengths, 2], -1)[..., 0] if kind == "strided" else torch.full(lengths, -1)
    if kind == "of another dtype":
        target = target.double()
    for need in parts(target, tuple(offsets), stored):
        filling, content = ItemReader(need, "here"), contents[int(need.stored.file)]
        for one in filling.stretches(0):
            filling.take(one.at, one.end, io.BytesIO(content[one.at : one.end]))
    assert torch.equal(target, box(whole, offsets, lengths).to(target.dtype))


def box(tensor: torch.Tensor, at: Sequence[int], of: Sequence[int]) -> torch.Tensor:
    for dim, (start, length) in enumerate(zip(at, of, strict=True)):
        tensor = tensor.narrow(dim, start, length)
    return tensor


@pytest.mark.parametrize("sums", [("zz" * 8,), ("0" * 15,), ("0" * 17,), ("é" * 16,)])
def test_checksums_that_are_none_are_damage(tmp_path: Path, sums: tuple[str, ...]) -> None:
    """Whoever can write an index can write anything there."""
    data = b"\0" * 8
    piece = TensorChunk("model.a", "float32", (2,), (0,), (2,), 0, len(data), sums)
    (tmp_path / "a.bin").write_bytes(data)
    (need,) = parts(torch.ones(2), (0,), [StoredEntry("a.bin", piece, 100)])
    filling = ItemReader(need, "a.bin")
    (stretch,) = filling.stretches(0)
    with (
        FolderStore(tmp_path).stream("a.bin", 0, len(data)) as reader,
        pytest.raises(CheckpointDamaged, match=r"model\.a has no checksums that can be read"),
    ):
        filling.take(stretch.at, stretch.end, reader)


@given(data=st.binary(max_size=300), each=st.integers(1, 100))
def test_a_checksum_is_known_from_those_of_the_parts(data: bytes, each: int) -> None:
    parts = [checksums.of(data[at : at + each]) for at in range(0, len(data), each)]
    assert checksums.joined(parts, each, len(data)) == checksums.of(data)
