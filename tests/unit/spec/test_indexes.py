"""What indexes say of ranks' files: pieces that together are whole tensors; anything else is damage."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_elastic.adapters.records import checksums
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.runtime.checkpoint.read.reader import CheckpointReader
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.index import Index, TensorChunk
from airflow_elastic.spec.checkpoints.manifest import Manifest, StoredFile
from airflow_elastic.spec.codec import encode


def checkpoint_of(files: dict[str, list[TensorChunk]], block: int = 16) -> tuple[Manifest, dict[str, bytes]]:
    """A checkpoint whose ranks' files hold these pieces."""
    indexes = {
        f"{name}.json": json.dumps(encode(Index(tuple(one), (), block))).encode()
        for name, one in files.items()
    }
    stored = [
        StoredFile(key, len(data), {checksums.ALGORITHM: checksums.of(data)}) for key, data in indexes.items()
    ]
    stored += [StoredFile(f"{name}.bin", 64, {}) for name in files]
    return Manifest(1, 1, 1, 1, 0.0, "", tuple(stored)), indexes


def row(at: int) -> TensorChunk:
    """A row of a matrix of 3."""
    return TensorChunk("model.weight", "float32", (3, 4), (at, 0), (1, 4), 0, 16, ("0" * 16,))


def test_a_piece_that_several_ranks_have_written_is_there_once() -> None:
    """As those do whose tensors are on a mesh beside which there are others."""
    reader = CheckpointReader(*checkpoint_of({"a": [row(0), row(1)], "b": [row(1), row(2)]}))
    assert reader.plan({"model": {"weight": torch.zeros(3, 4)}}, {}).file_bytes == 3 * 16


def test_a_checkpoint_with_a_hole_is_damaged_for_every_rank() -> None:
    """Also for those that need none of what is missing."""
    with pytest.raises(CheckpointDamaged, match=r"4 of the 12 elements of model.weight are missing"):
        CheckpointReader(*checkpoint_of({"a": [row(0), row(0)], "b": [row(2)]}))


@pytest.mark.parametrize(
    ("forged", "said"),
    [
        ({"dtype": "nonsense"}, "has a dtype that torch does not have: nonsense"),
        ({"dtype": "save", "size": 16}, "has a dtype that torch does not have: save"),
        ({"offsets": (-1, 0)}, r"is no part of a tensor of \(3, 4\)"),
        ({"lengths": (4, 4), "size": 64}, r"is no part of a tensor of \(3, 4\)"),
        ({"offsets": (0,)}, "zip"),
        ({"checksums": ()}, "has 0 checksums for 16 bytes from"),
        ({"at": -1}, "has 1 checksums for 16 bytes from"),
        ({"size": 4}, r"has 4 bytes for \(1, 4\) of float32"),
        ({"at": 49}, "model.weight ends at byte 65 of 64"),
        ({"at": 2**70}, f"model.weight ends at byte {2**70 + 16} of 64"),
    ],
)
def test_an_index_that_is_none_is_damage_whatever_its_checksum_says(
    forged: dict[str, Any], said: str
) -> None:
    manifest, indexes = checkpoint_of({"rank-0": [row(0), row(1), replace(row(2), **forged)]})
    with pytest.raises(CheckpointDamaged, match=f"is no index of a rank's file: .*{said}"):
        CheckpointReader(manifest, indexes)


def test_an_index_so_deep_that_nobody_can_read_it_is_damage() -> None:
    manifest, indexes = checkpoint_of({"rank-0": [row(0), row(1), row(2)]})
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"," + indexes["rank-0.json"][1:]
    files = (
        StoredFile("rank-0.json", len(deep), {checksums.ALGORITHM: checksums.of(deep)}),
        manifest.files[1],
    )
    with pytest.raises(CheckpointDamaged, match="is no index of a rank's file"):
        CheckpointReader(replace(manifest, files=files), {"rank-0.json": deep})


@pytest.mark.parametrize("other", [{"shape": (3, 4, 1)}, {"dtype": "int32"}])
def test_parts_of_several_tensors_are_none_of_one(other: dict[str, Any]) -> None:
    extra = {"offsets": (2, 0, 0), "lengths": (1, 4, 1)} if "shape" in other else {}
    with pytest.raises(CheckpointDamaged, match=r"model.weight is stored as several values"):
        CheckpointReader(*checkpoint_of({"rank-0": [row(0), row(1), replace(row(2), **other, **extra)]}))


@pytest.mark.parametrize("dtype", ["qint8", "quint4x2", "no such", "Tensor"])
def test_an_index_of_what_is_no_plain_number_is_damage(dtype: str) -> None:
    piece = TensorChunk("optimizer.norm", dtype, (4,), (0,), (4,), 0, 4, ("0" * 16,))
    with pytest.raises(CheckpointDamaged, match=r"optimizer\.norm has a dtype that torch does not have"):
        CheckpointReader(*checkpoint_of({"rank-0": [piece]}))


@pytest.mark.parametrize("block", [0, -1, 1 << 30, 10**30])
def test_an_index_of_blocks_that_nobody_could_read_is_damage(block: int) -> None:
    manifest, indexes = checkpoint_of({"rank-0": [row(0), row(1), row(2)]}, block)
    with pytest.raises(CheckpointDamaged, match=f"is no index of a rank's file: blocks of {block} bytes"):
        CheckpointReader(manifest, indexes)


def test_what_was_written_before_an_index_told_the_size_of_its_blocks_is_read(tmp_path: Path) -> None:
    saved, folder = torch.rand(600, 600), layout.checkpoint_data(1, 1, 1)
    data = saved.numpy().tobytes()  # 1.44 MB: three blocks of 512 KiB
    sums = tuple(checksums.of(data[at : at + (512 << 10)]) for at in range(0, len(data), 512 << 10))
    piece = TensorChunk("weight", "float32", (600, 600), (0, 0), (600, 600), 0, len(data), sums)
    plain = encode(Index((piece,), ()))
    assert "block_bytes" not in plain
    store, told = FolderStore(tmp_path), json.dumps(plain).encode()
    store.put(f"{folder}rank-0.bin", data)
    files = tuple(
        StoredFile(f"{folder}{name}", len(one), {checksums.ALGORITHM: checksums.of(one)})
        for name, one in (("rank-0.bin", data), ("rank-0.json", told))
    )
    manifest, target = Manifest(1, 1, 1, 1, 0.0, folder, files, version=2), torch.zeros(600, 600)
    CheckpointReader(manifest, {files[1].key: told}).plan({"weight": target}, {}).read(store)
    assert torch.equal(target, saved)
