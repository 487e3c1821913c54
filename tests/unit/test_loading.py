"""What is read in parts, by several threads, at one go or in pieces, is what was stored."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from airflow_elastic.adapters import checkpoints, checksums
from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.folder import FolderStore
from airflow_elastic.adapters.store import Reader
from airflow_elastic.runtime import loading
from airflow_elastic.runtime.flat_reader import FlatReader
from airflow_elastic.runtime.restoring import read_indexes
from airflow_elastic.runtime.saving import Position, Stateful
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.index import Index, Piece
from tests.support.saving import Worker


class Far(FolderStore):
    """A folder that is no folder of this machine, and gives what is asked for in dribs and drabs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[tuple[str, int, int]] = []

    def local_path(self, key: str) -> Path | None:
        return None

    @contextmanager
    def stream(self, key: str, start: int, size: int) -> Iterator[Reader]:
        self.asked.append((key, start, size))
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


@pytest.mark.parametrize(("part", "gap"), [(1 << 24, 1 << 20), (1000, 100), (64, 0), (1, 0)])
@pytest.mark.parametrize("far", [True, False])
def test_parts_of_any_size_make_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int, gap: int, far: bool
) -> None:
    monkeypatch.setattr(loading, "_PART_BYTES", part)
    monkeypatch.setattr(loading, "_GAP_BYTES", gap)
    saved = model(3)
    Worker(str(tmp_path)).save(Stateful(saved, (), {}), 1, Position(), reason="script", metrics={})
    store: Far = Far(tmp_path)
    manifest = checkpoints.read(store, 1)
    # Some of it only: what lies between is not wanted.
    wanted = {f"model.{name}": value for i, (name, value) in enumerate(saved.state_dict().items()) if i % 3}
    state = {name: torch.zeros_like(value) for name, value in wanted.items()}
    plan = FlatReader(manifest, read_indexes(store, manifest)).plan(state, {})
    plan.read(store if far else FolderStore(tmp_path))
    for name, value in wanted.items():
        assert torch.equal(state[name], value), name
    if far:
        sizes = [size for _, _, size in store.asked]
        assert max(sizes) <= max(part, max(value.nbytes for value in wanted.values()))
        if part == 1 << 24:
            assert len(sizes) == 1, "neighbours come with one request"


def flat_pieces(indexes: dict[str, bytes]) -> list[Piece]:
    return [piece for data in indexes.values() for piece in decode(Index, json.loads(data)).pieces]


def test_a_flipped_bit_in_any_part_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_PART_BYTES", 100)
    saved = torch.nn.Linear(30, 30, bias=False)
    Worker(str(tmp_path)).save(Stateful(saved, (), {}), 1, Position(), reason="script", metrics={})
    store = FolderStore(tmp_path)
    manifest = checkpoints.read(store, 1)
    indexes = read_indexes(store, manifest)
    (file,) = tmp_path.glob("checkpoints/data/**/*.bin")
    good = file.read_bytes()
    (piece,) = (one for one in flat_pieces(indexes) if one.key == "model.weight")
    for at in range(piece.at, piece.at + piece.size, 90):
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(CheckpointDamaged, match=r"model.weight .*its bytes have changed"):
            FlatReader(manifest, indexes).plan({"model.weight": torch.zeros(30, 30)}, {}).read(store)


def test_checksums_of_parts_make_that_of_the_whole() -> None:
    luck = random.Random(5)
    for _ in range(50):
        data = luck.randbytes(luck.randint(0, 5000))
        cuts = sorted(luck.randint(0, len(data)) for _ in range(luck.randint(0, 6)))
        parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        assert checksums.combined((len(part), checksums.further(0, part)) for part in parts) == checksums.of(
            data
        )
