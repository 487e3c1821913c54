"""Tied weights: one tensor by several names is copied, kept and read once, and comes back by all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from airflow_elastic.runtime.checkpoint.restore.load_model import load_model
from airflow_elastic.runtime.checkpoint.restore.weights import export_weights, load_weights
from airflow_elastic.runtime.checkpoint.save import save as saving
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.spec.errors import InvalidInput
from tests.support.machine.threads import process_group
from tests.support.training.optimizers import equal
from tests.support.training.saving import SavingWorker, restorer, save

WIDE = 64 << 10


class Tied(torch.nn.Module):
    def __init__(self, seed: int = 0, *, tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(WIDE, 4)
        self.head = torch.nn.Linear(4, WIDE, bias=False)
        self.register_buffer("table", torch.randn(WIDE))
        self.register_buffer("same_table", self.table)
        if tied:
            self.head.weight = self.embedding.weight
        # Of the same memory, and something else.
        self.register_buffer("turned", self.table.view(256, 256).t())


def objects(seed: int = 0, *, tied: bool = True, **others: Any) -> Stateful:
    model = Tied(seed, tied=tied)
    return Stateful(model, (torch.optim.SGD(model.parameters(), lr=0.1),), others)


def stored(run: Path) -> int:
    return sum(path.stat().st_size for path in (run / "checkpoints").rglob("*.bin"))


def test_one_tensor_is_copied_and_stored_once(tmp_path: Path) -> None:
    whole = WIDE * 4 * 4
    worker = save(tmp_path / "run", 1, objects(other=Tied(7)))
    assert 2 * whole < stored(tmp_path / "run") < 4 * whole  # and once by the object that has a name
    (note,) = [note for slot in worker.node.slots.of[0] if (note := slot.note())]
    assert note.kept_bytes == stored(tmp_path / "run")
    index = json.loads(
        next((tmp_path / "run").rglob("rank-00000.bin").__iter__()).with_suffix(".json").read_text()
    )
    assert index["ties"]["model.head.weight"] == "model.embedding.weight"
    assert "model.turned" not in index["ties"]


@pytest.mark.parametrize("former", [False, True], ids=["", "of a former release"])
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
def test_comes_back_by_all_names(former: bool, sharded: bool, tmp_path: Path) -> None:
    with process_group():

        def made(seed: int) -> Stateful:
            if not sharded:
                return objects(seed, other=Tied(seed + 1))
            model, other = fully_shard(Tied(seed)), fully_shard(Tied(seed + 1))
            return Stateful(model, (torch.optim.SGD(model.parameters(), lr=0.1),), {"other": other})

        one, other = made(0), made(5)
        if former:
            with patch.object(saving, "ties_of", lambda state: None):
                save(tmp_path / "run", 1, one)
        else:
            save(tmp_path / "run", 1, one)
        restorer(tmp_path / "run").restore(other)
        for saved, loaded in ((one.model, other.model), (one.others["other"], other.others["other"])):
            ours, theirs = saved.state_dict(), loaded.state_dict()
            assert ours.keys() == theirs.keys()
            full = [
                getattr(each, "full_tensor", lambda each=each: each)()
                for each in (*ours.values(), *theirs.values())
            ]
            half = len(full) // 2
            assert all(torch.equal(a, b) for a, b in zip(full[:half], full[half:], strict=True))
            assert loaded.head.weight is loaded.embedding.weight


def test_from_memory_of_the_agent(tmp_path: Path) -> None:
    worker = SavingWorker(str(tmp_path / "run"))
    one, other = objects(0), objects(5)
    worker.save(one, 1, saving.Position(), reason="script", metrics={})
    restorer(tmp_path / "run", stage=worker.stage).restore(other)
    assert equal(one.model.state_dict(), other.model.state_dict())


def test_what_is_one_here_and_was_two_is_refused(tmp_path: Path) -> None:
    """Whose values would it have?"""
    save(tmp_path / "run", 1, objects(tied=False))
    without = Tied(5)
    with pytest.raises(
        InvalidInput, match=r"embedding\.weight and model\.head\.weight are one tensor in the script"
    ):
        restorer(tmp_path / "run").restore(Stateful(without, (), {}))


def test_what_is_two_here_and_was_one_gets_both(tmp_path: Path) -> None:
    save(tmp_path / "run", 1, Stateful(Tied(0), (), {}))
    other = Tied(5, tied=False)
    load_model(str(tmp_path / "run"), other)
    assert torch.equal(other.head.weight, other.embedding.weight)
    assert torch.equal(other.head.weight, Tied(0).head.weight)


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_is_exported_and_loaded(name: str, tmp_path: Path) -> None:
    save(tmp_path / "run", 1, objects(0))
    export_weights(str(tmp_path / "run"), tmp_path / name)
    for other in (Tied(5), Tied(5, tied=False)):
        load_weights(tmp_path / name, other)
        assert equal(dict(other.state_dict()), dict(Tied(0).state_dict()))
