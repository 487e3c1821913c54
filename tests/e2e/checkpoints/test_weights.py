"""Weights that leave for programs that do not know us, and that come from such."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file, save_model

import airflow_elastic.runtime as elastic
from airflow_elastic.adapters.host.scratch_folders import scratch
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.run import Workers
from tests.e2e.checkpoints.test_load_model import network, save, weights
from tests.support import s3
from tests.support.driving import SCRIPTS, driving, training
from tests.support.machine.leaks import half_written
from tests.support.training.forging import Hostile
from tests.support.training.saving import SavingWorker

FILES = pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])


@FILES
def test_what_is_exported_is_what_was_saved(tmp_path: Path, name: str) -> None:
    save(str(tmp_path / "run"), 10, 20)
    manifest = elastic.export_weights(str(tmp_path / "run"), tmp_path / "out" / name)
    assert manifest.step == 20
    model = network()
    elastic.load_weights(tmp_path / "out" / name, model)
    assert weights(model) == {20.0}
    elastic.export_weights(str(tmp_path / "run"), tmp_path / "out" / name, step=10)
    elastic.load_weights(tmp_path / "out" / name, model)
    assert weights(model) == {10.0}
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]
    (tmp_path / "mine").touch()
    assert (tmp_path / "out" / name).stat().st_mode == (tmp_path / "mine").stat().st_mode


def test_an_export_tells_how_far_it_is(tmp_path: Path) -> None:
    save(str(tmp_path / "run"), 10)
    told: list[tuple[int, int]] = []
    elastic.export_weights(
        str(tmp_path / "run"), tmp_path / "model.pt", told=lambda *so_far: told.append(so_far)
    )
    size = sum(one.numel() * one.element_size() for one in network().state_dict().values())
    assert told[0] == (0, size)
    assert told[-1] == (size, size)


def test_others_read_it_without_us(tmp_path: Path) -> None:
    save(str(tmp_path / "run"), 10)
    elastic.export_weights(str(tmp_path / "run"), tmp_path / "model.pt")
    model = network()
    model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert weights(model) == {10.0}
    elastic.export_weights(str(tmp_path / "run"), tmp_path / "model.safetensors")
    with safetensors.safe_open(str(tmp_path / "model.safetensors"), "pt") as file:
        assert set(file.keys()) == set(model.state_dict())
        assert file.metadata() == {"step": "10", "run": str(tmp_path / "run")}


@pytest.fixture
def s3_uri(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with s3.s3_server() as server:
        for key, value in server.env.items():
            monkeypatch.setenv(key, value)
        yield f"s3://{server.bucket}"


@FILES
def test_from_and_to_a_bucket(s3_uri: str, tmp_path: Path, name: str) -> None:
    save(f"{s3_uri}/run", 10)
    elastic.export_weights(f"{s3_uri}/run", f"{s3_uri}/shelf/{name}")
    assert not list(tmp_path.iterdir())
    model = network()
    elastic.load_weights(f"{s3_uri}/shelf/{name}", model)
    assert weights(model) == {10.0}


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("model.onnx", r"given a name of no known format; allowed: a name that ends with \.pt"),
        ("missing.pt", "there is no such file"),
        ("text.pt", "is no state dict that torch.save has written"),
        ("text.safetensors", "is no safetensors file"),
        ("list.pt", "given list; allowed: a state dict"),
        ("other.pt", r"the script has no model\.extra"),
    ],
)
def test_what_cannot_be_loaded_is_refused_and_the_model_left_alone(
    tmp_path: Path, file: str, said: str
) -> None:
    for text in ("text.pt", "text.safetensors", "model.onnx"):
        (tmp_path / text).write_text("no weights")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({**network().state_dict(), "extra": torch.ones(2)}, tmp_path / "other.pt")
    model = network()
    before = weights(model)
    with pytest.raises(InvalidInput, match=said):
        elastic.load_weights(tmp_path / file, model)
    assert weights(model) == before


def test_a_hostile_file_is_not_executed(tmp_path: Path) -> None:
    torch.save({"weight": Hostile(tmp_path / "owned")}, tmp_path / "model.pt")
    with pytest.raises(InvalidInput, match="is no state dict"):
        elastic.load_weights(tmp_path / "model.pt", network())
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        ("fsdp", "model.safetensors"),
        ("ddp", "model.pt"),
        pytest.param("fsdp", "model.pt", marks=pytest.mark.slow),
        pytest.param("ddp", "model.safetensors", marks=pytest.mark.slow),
    ],
)
async def test_into_a_wrapped_model_and_out_of_what_its_ranks_have_saved(
    tmp_path: Path, wrap: str, name: str
) -> None:
    """Also where ranks have parts of different sizes."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    model(torch.randn(8, 7))  # its means are not what they begin with
    begun = model.state_dict()
    torch.save(begun, tmp_path / name) if name.endswith(".pt") else save_file(begun, tmp_path / name)
    words = (f"--wrap={wrap}", f"--weights={tmp_path / name}", f"--out={tmp_path}")
    command = (str(SCRIPTS / "wrapped.py"), *words)
    async with driving(tmp_path / "run", training(command=command, workers=Workers(2))) as driven:
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    for rank in range(2):
        assert is_same(torch.load(tmp_path / f"loaded-{rank}.pt", weights_only=True), begun)
    trained = torch.load(tmp_path / "trained-0.pt", weights_only=True)
    manifest = elastic.export_weights(str(tmp_path / "run"), tmp_path / f"out-{name}")
    assert (manifest.step, manifest.world_size) == (5, 2)
    read = load_file if name.endswith(".safetensors") else partial(torch.load, weights_only=True)
    assert is_same(read(tmp_path / f"out-{name}"), trained)
    assert not is_same(trained, begun)
    elastic.load_weights(tmp_path / f"out-{name}", model)
    assert is_same(model.state_dict(), trained)


def is_same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_where_safetensors_is_missing_the_extra_that_brings_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(str(tmp_path / "run"), 10)
    elastic.export_weights(str(tmp_path / "run"), tmp_path / "model.safetensors")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    for use in (
        lambda: elastic.export_weights(str(tmp_path / "run"), tmp_path / "other.safetensors"),
        lambda: elastic.load_weights(tmp_path / "model.safetensors", network()),
    ):
        with pytest.raises(
            InvalidInput, match=r"pip install 'airflow-elastic\[safetensors\]', or use a \.pt file"
        ):
            use()
    assert not (tmp_path / "other.safetensors").exists()
    assert "safetensors" in metadata("airflow-elastic").get_all("Provides-Extra", ())


class Stamped(torch.nn.Linear):
    """Its state is not all tensors."""

    stamps: dict[str, int] | None = None

    def get_extra_state(self) -> dict[str, int] | None:
        return self.stamps

    def set_extra_state(self, state: Any) -> None:
        self.stamps = state


def test_what_is_no_tensor_is_not_lost_in_silence(tmp_path: Path) -> None:
    model = Stamped(2, 2)
    model.stamps = {"stamp": 7}
    objects = Stateful(model, (), {})
    SavingWorker(str(tmp_path / "run")).save(objects, 5, Position(), reason="steps", metrics={})
    with pytest.raises(InvalidInput, match="safetensors holds tensors only, and the model has _extra_state"):
        elastic.export_weights(str(tmp_path / "run"), tmp_path / "model.safetensors")
    elastic.export_weights(str(tmp_path / "run"), tmp_path / "model.pt")
    for load in (
        lambda other: elastic.load_weights(tmp_path / "model.pt", other),
        lambda other: elastic.load_model(str(tmp_path / "run"), other),
    ):
        other = Stamped(2, 2)
        load(other)
        assert other.stamps == {"stamp": 7}
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["model.pt"]


def test_a_dtype_that_safetensors_does_not_have_is_refused(tmp_path: Path) -> None:
    network = torch.nn.Module()
    network.register_buffer("phase", torch.zeros(2, dtype=torch.complex128))
    SavingWorker(str(tmp_path / "run")).save(
        Stateful(network, (), {}), 1, Position(), reason="script", metrics={}
    )
    with pytest.raises(
        InvalidInput, match=r"safetensors has no torch\.complex128, and the model has: write a \.pt"
    ):
        elastic.export_weights(str(tmp_path / "run"), tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_a_file_that_is_replaced_stays_as_private_as_it_was(tmp_path: Path, name: str) -> None:
    save(str(tmp_path / "run"), 10)
    (tmp_path / name).touch(0o600)
    elastic.export_weights(str(tmp_path / "run"), tmp_path / name)
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


class Tied(torch.nn.Module):
    """Words in, words out, by the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(5, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.words.weight


def written_in_parts(folder: Path, state: Mapping[str, torch.Tensor], ending: str) -> str:
    """As Hugging Face's libraries write what is large: some tensors in each file, and an index. Returns its name."""
    names = {name: f"model-{number % 2 + 1:05}-of-00002{ending}" for number, name in enumerate(state)}
    for file in set(names.values()):
        part = {name: state[name].clone() for name in state if names[name] == file}
        (save_file if ending == ".safetensors" else torch.save)(part, folder / file)
    index = folder / f"model{ending}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": names}))
    return index.name


@pytest.mark.parametrize("ending", [".safetensors", ".bin"])
def test_weights_in_several_files_are_read_by_their_index(tmp_path: Path, ending: str) -> None:
    torch.manual_seed(1)
    there = Tied().state_dict()
    del there["head.weight"]
    model = Tied()
    elastic.load_weights(tmp_path / written_in_parts(tmp_path, there, ending), model)
    assert is_same({**there, "head.weight": there["words.weight"]}, model.state_dict())
    (tmp_path / f"model-00002-of-00002{ending}").unlink()
    with pytest.raises(InvalidInput, match=r"model-00002-of-00002\S+: there is no such file"):
        elastic.load_weights(tmp_path / f"model{ending}.index.json", model)
    for said in ('{"weight_map": {"a": "../model.bin"}}', '{"weight_map": {"a": "b.index.json"}}', "[]", "{"):
        (tmp_path / "odd.index.json").write_text(said)
        with pytest.raises(InvalidInput, match=r"allowed: files of weights beside it|is no index of weights"):
            elastic.load_weights(tmp_path / "odd.index.json", model)


def test_weights_in_several_files_of_a_bucket(s3_uri: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    there = network().state_dict()
    written_in_parts(tmp_path, there, ".safetensors")
    shelf = open_store(f"{s3_uri}/shelf")
    for path in tmp_path.iterdir():
        shelf.upload(path.name, path)
    model = network()
    elastic.load_weights(f"{s3_uri}/shelf/model.safetensors.index.json", model)
    assert is_same(there, model.state_dict())


def test_what_a_model_has_by_two_names_may_be_in_a_file_by_one(tmp_path: Path) -> None:
    torch.manual_seed(1)
    one = Tied()
    save_model(one, str(tmp_path / "model.safetensors"))
    assert len(load_file(tmp_path / "model.safetensors")) < len(one.state_dict())
    model = Tied()
    elastic.load_weights(tmp_path / "model.safetensors", model)
    assert is_same(one.state_dict(), model.state_dict())
    assert model.head.weight is model.words.weight


@pytest.mark.parametrize("before", ["module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod."])
def test_weights_of_a_wrapped_model_are_known_without_what_wrapped_it(tmp_path: Path, before: str) -> None:
    torch.manual_seed(1)
    there = Tied().state_dict()
    torch.save({f"{before}{name}": value for name, value in there.items()}, tmp_path / "model.pt")
    model = Tied()
    elastic.load_weights(tmp_path / "model.pt", model)
    assert is_same(there, model.state_dict())


def test_a_state_dict_within_another_dict_is_named(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "state_dict": Tied().state_dict()}, tmp_path / "last.pt")
    with pytest.raises(InvalidInput, match=r"a dict with 'state_dict' in it; .*Save that one alone with "):
        elastic.load_weights(tmp_path / "last.pt", Tied())


DYING = """
import os, signal, sys
from itertools import count
from airflow_elastic.adapters.storage.s3 import bulk as s3_bulk
from airflow_elastic.runtime.checkpoint.restore import weights

def dies(call, after):
    def dying(*args):
        answer = call(*args)
        if next(after) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    return dying

if "://" in sys.argv[2]:
    s3_bulk._body = dies(s3_bulk._body, count(-1))  # of the second part
else:
    weights.write = dies(weights.write, count())
weights.main()
"""


def killed_while_it_exports(uri: str, to: str) -> None:
    done = subprocess.run([sys.executable, "-c", DYING, uri, to], check=False)
    assert done.returncode == -signal.SIGKILL


def half_uploaded(uri: str) -> list[str]:
    """Objects of which somebody has begun to send parts, and has not finished."""
    found: list[str] = []
    open_store(uri).abandon("", lambda key: bool(found.append(key)))  # type: ignore[func-returns-value]
    return found


def test_nothing_stays_of_an_export_that_was_killed(
    s3_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)  # where it was when somebody asked first
    run, bucket, folder = str(tmp_path / "run"), f"{s3_uri}/shelf/model.pt", tmp_path / "shelf"
    objects = Stateful(torch.nn.Linear(3000, 4000), (), {})  # three parts of an upload
    SavingWorker(run).save(objects, 1, Position(), reason="script", metrics={})
    killed_while_it_exports(run, bucket)
    killed_while_it_exports(run, f"{folder}/model.pt")
    assert half_uploaded(f"{s3_uri}/shelf") == ["model.pt"]
    (left,) = (tmp_path / "tmp").glob("elastic-weights-*")
    assert left.joinpath("model.pt").exists()
    assert half_written(folder)
    with scratch("elastic-weights-"):
        assert left.exists()  # one so young may be about to be locked
    os.utime(left, (0, 0))
    elastic.export_weights(run, bucket)
    elastic.export_weights(run, folder / "model.pt")
    assert [path.name for path in folder.iterdir()] == ["model.pt"]
    assert not [path for path in (tmp_path / "tmp").iterdir() if path.name.startswith("elastic-weights-")]
    assert half_uploaded(f"{s3_uri}/shelf") == []


def test_a_folder_that_is_in_use_is_not_taken_for_one_that_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch("elastic-weights-") as mine:
        os.utime(mine, (0, 0))
        with scratch("elastic-weights-") as other:
            assert {*tmp_path.iterdir()} == {mine, other}
    assert not list(tmp_path.iterdir())
