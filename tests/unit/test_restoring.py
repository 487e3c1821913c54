"""What is loaded is what was committed, or nothing."""

from __future__ import annotations

import copy
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from airflow_elastic.adapters import checkpoints, keeping
from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.mailbox import CheckpointTrouble, Mailbox
from airflow_elastic.adapters.store import Reader, Store, untold
from airflow_elastic.adapters.stores import open_store
from airflow_elastic.control.look import events_of
from airflow_elastic.control.runs import start_run
from airflow_elastic.runtime import randomness, restoring, saving
from airflow_elastic.runtime.apart import Held, HeldArray, Rest, take_apart
from airflow_elastic.runtime.flat_reader import Loading
from airflow_elastic.runtime.loading import Told
from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.runtime.restoring import Restorer, Room
from airflow_elastic.runtime.saving import Position, Stateful
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.manifest import Manifest
from airflow_elastic.spec.run import RunSpec
from tests.support.forging import Hostile, forging
from tests.support.machines import Far
from tests.support.saving import Worker, objects, restorer, same, save
from tests.support.threads import process_group, together


def test_what_the_agent_still_has_in_memory_is_not_read_from_storage(tmp_path: Path) -> None:
    saved, loaded = objects(1), objects(2)
    worker = save(tmp_path, 7, saved)
    (data,) = tmp_path.glob("checkpoints/data/**/*.bin")
    data.write_bytes(b"nobody reads this")
    assert restorer(tmp_path, stage=worker.stage).restore(loaded) is not None
    assert same(saved, loaded)


def test_memory_of_another_step_is_not_taken(tmp_path: Path) -> None:
    saved, loaded = objects(1), objects(2)
    save(tmp_path, 7, saved)
    other = Worker(str(tmp_path / "another run"))
    other.save(objects(3), 8, Position(), reason="script", metrics={})
    assert restorer(tmp_path, stage=other.stage).restore(loaded) is not None
    assert same(saved, loaded)


def test_memory_that_is_not_what_was_committed_is_left_for_storage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved, loaded = objects(1), objects(2)
    worker = save(tmp_path, 7, saved)
    slot, at = worker.stage.memory(1, 7, dict)["model.0.weight", (0, 0)]
    os.pwrite(slot.fileno(), b"\xff", at)
    assert restorer(tmp_path, stage=worker.stage).restore(loaded) is not None
    assert same(saved, loaded)
    assert "model.0.weight in the memory of this worker's agent is not what was committed" in caplog.text
    assert "reading again, from storage alone" in caplog.text
    (news,) = Mailbox(worker.store).read()
    (event,) = events_of(news, 1.0)
    why = "model.0.weight in the memory of this worker's agent is not what was committed: its bytes have changed"
    assert event == ev.CopyRefused(1.0, 2, 7, "node-0", f"{why}. It was read from storage instead")


class OfItsOwn(torch.nn.Linear):
    """Loads itself."""

    asked = 0

    def _load_from_state_dict(self, *args: Any) -> None:
        self.asked += 1
        super()._load_from_state_dict(*args)


class AsAWhole(torch.nn.Sequential):
    """The same, from outside."""

    asked = 0

    def load_state_dict(self, *args: Any, **more: Any) -> Any:
        self.asked += 1
        return super().load_state_dict(*args, **more)


def _ema(module: torch.nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    state[f"{prefix}weight"] = module.ema


def told(how: str) -> tuple[torch.nn.Module, list[str]]:
    """A model that has, in one of these ways, a way of its own to be loaded; and where it says that it was asked."""
    asked: list[str] = []
    inner = OfItsOwn(3, 3) if how == "override" else torch.nn.Linear(3, 3)
    model = (AsAWhole if how == "whole" else torch.nn.Sequential)(inner)
    if how == "pre":
        inner.register_load_state_dict_pre_hook(lambda *_: asked.append(how))
    if how == "post":
        inner.register_load_state_dict_post_hook(lambda *_: asked.append(how))
    if how == "of one object":
        load = model.load_state_dict
        model.load_state_dict = lambda *args, **more: (asked.append(how), load(*args, **more))[1]  # type: ignore[method-assign]
    if how == "saved otherwise":
        inner.register_buffer("ema", torch.ones(3, 3), persistent=False)
        inner.register_state_dict_post_hook(_ema)
    return model, asked


@pytest.mark.parametrize(
    ("how", "sharded"),
    [
        *product(("override", "whole", "pre", "post", "of one object"), (False, True)),
        ("saved otherwise", False),
    ],
)
def test_modules_that_see_to_loading_are_asked(tmp_path: Path, how: str, sharded: bool) -> None:
    """Those that do not find in themselves what was read."""
    model, asked = told(how)
    before = copy.deepcopy(model.state_dict())
    with process_group() if sharded else nullcontext():
        if sharded:
            fully_shard(model)
        save(tmp_path, 1, trained(model))
        for tensor in model.parameters():
            torch.nn.init.zeros_(tensor)
        restorer(tmp_path).restore(trained(model))
        parameters = {name: whole(one) for name, one in model.named_parameters()}
        assert all(torch.equal(parameters[name], before[name]) for name in before)
    assert asked or getattr(model[0], "asked", 0) or getattr(model, "asked", how == "saved otherwise")  # type: ignore[index]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def trained(model: torch.nn.Module) -> Stateful:
    return Stateful(model, (torch.optim.SGD(model.parameters(), lr=0.0),), {})


def test_what_is_read_into_a_plain_model_is_not_copied_onto_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, objects(1))
    monkeypatch.delattr(restoring, "set_model_state_dict")
    loaded = objects(2)
    restorer(tmp_path).restore(loaded)
    assert same(loaded, objects(1))


def test_nor_into_a_sharded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose root has whole parameters after a forward pass, which are not those that are trained."""
    monkeypatch.delattr(restoring, "set_model_state_dict")
    with process_group():
        saved, loaded = (trained(fully_shard(torch.nn.Linear(3, 3))) for _ in range(2))
        save(tmp_path, 1, saved)
        with torch.no_grad():
            loaded.model(torch.ones(1, 3))
        restorer(tmp_path).restore(loaded)
        assert torch.equal(saved.model(torch.eye(3)), loaded.model(torch.eye(3)))


def test_parameters_that_were_put_in_place_of_sharded_ones_are_those_that_are_trained(tmp_path: Path) -> None:
    """Though fully_shard has used the former ones already."""
    with process_group():
        saved, loaded = (trained(fully_shard(torch.nn.Sequential(torch.nn.Linear(3, 3)))) for _ in range(2))
        save(tmp_path, 1, saved)
        loaded.model(torch.ones(1, 3))
        loaded.model.reshard()
        layer: Any = loaded.model[0]  # type: ignore[index]
        layer.weight = torch.nn.Parameter(torch.zeros_like(layer.weight))
        loaded = trained(loaded.model)
        restorer(tmp_path).restore(loaded)
        assert torch.equal(saved.model(torch.eye(3)), loaded.model(torch.eye(3)))


def test_a_buffer_without_memory_of_its_own_is_in_nobodys_way(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer("adjacent", torch.eye(2).to_sparse(), persistent=False)
    save(tmp_path, 1, trained(model))
    assert restorer(tmp_path).restore(trained(model)) is not None


def test_a_model_without_memory_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1, trained(torch.nn.Linear(2, 2)))
    with pytest.raises(InvalidInput, match=r"model\.\w+ is on the meta device"):
        restorer(tmp_path).restore(trained(torch.nn.Linear(2, 2, device="meta")))


def test_a_model_without_an_optimizer_is_restored(tmp_path: Path) -> None:
    saved, loaded = (replace(objects(seed), optimizers=(), others={}) for seed in (1, 2))
    save(tmp_path, 7, saved)
    assert restorer(tmp_path).restore(loaded) is not None
    vectors = [torch.nn.utils.parameters_to_vector(one.model.parameters()) for one in (saved, loaded)]
    assert torch.equal(*vectors)


def test_another_torch_than_saved_it_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It promises neither the same bits, nor the same order of samples for a seed."""
    save(tmp_path, 5, objects(1))
    restorer(tmp_path).restore(objects(2))
    assert "another" not in caplog.text
    monkeypatch.setitem(saving.VERSIONS, "torch", "9.9.9")
    assert restorer(tmp_path).restore(objects(2)) is not None
    assert f"checkpoint 5 was saved with torch {torch.__version__}, and this is 9.9.9" in caplog.text


def test_where_there_is_none_nothing_changes(tmp_path: Path) -> None:
    fresh, untouched = objects(1), objects(1)
    assert restorer(tmp_path).restore(fresh) is None
    assert same(fresh, untouched)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "extend", "manifest", "deep manifest"])
def test_a_damaged_newest_one_is_left_aside(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = objects(1)
    save(tmp_path, 5, good)
    save(tmp_path, 9, objects(2))
    _damage(tmp_path, 9, damage)
    loaded = objects(3)
    with caplog.at_level(logging.WARNING):
        manifest = restorer(tmp_path, attempt=2).restore(loaded)
    assert manifest is not None
    assert manifest.step == 5
    assert same(good, loaded)
    assert "trying the one before it" in caplog.text


def test_a_damaged_one_is_set_aside_and_its_step_can_be_saved_again(tmp_path: Path) -> None:
    save(tmp_path, 5, objects(1))
    save(tmp_path, 9, objects(2))
    _damage(tmp_path, 9, "flip")
    restorer(tmp_path, attempt=2).restore(objects(3))
    store = open_store(str(tmp_path))
    assert (checkpoints.steps(store), list(keeping.quarantined(store))) == ([5], [9])
    news, again = Mailbox(store).read()
    assert again.checkpoint == news.checkpoint, "nor does a controller that looks in between miss it"
    assert (news.kind, news.checkpoint) == (
        "damaged",
        CheckpointTrouble(2, 9, keeping.quarantined(store)[9], newest=5),
    )
    assert "its bytes have changed" in keeping.quarantined(store)[9]

    save(tmp_path, 9, good := objects(4), attempt=2)
    loaded = objects(5)
    restored = restorer(tmp_path, attempt=3).restore(loaded)
    assert restored is not None
    assert restored.step == 9
    assert same(good, loaded)
    damaged = layout.checkpoint_data(9, 1, 1)
    assert store.list(damaged), "what is damaged is kept for whoever wants to know why"
    for step in (12, 15, 18):
        save(tmp_path, step, objects(6), attempt=3)
    assert (keeping.quarantined(store), store.list(damaged)) == ({}, []), "it is kept for ever"


def test_of_a_damaged_one_that_file_is_read_again_which_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other ranks wait meanwhile, and a checkpoint may be large."""
    save(tmp_path, 5, objects(1))
    save(tmp_path, 9, objects(2))
    _damage(tmp_path, 9, "flip")
    looked: list[str] = []
    problems = checkpoints.problems

    def seen(store: Store, manifest: Manifest, *, only: Callable[[int], bool]) -> list[str]:
        looked.extend(file.key for at, file in enumerate(manifest.files) if only(at))
        return problems(store, manifest, only=only)

    monkeypatch.setattr(checkpoints, "problems", seen)
    restorer(tmp_path, attempt=2).restore(objects(3))
    store = open_store(str(tmp_path))
    assert list(keeping.quarantined(store)) == [9]
    (key,) = looked
    assert key in keeping.quarantined(store)[9]


def test_what_only_one_machine_cannot_read_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 5, objects(1))
    save(tmp_path, 9, objects(2))
    read = Loading.read

    def bad_memory(self: Loading, store: Store, told: Told, processors: int) -> None:
        read(self, store, told, processors)
        if self.manifest.step == 9:
            raise CheckpointDamaged("a bit has flipped")

    monkeypatch.setattr(Loading, "read", bad_memory)
    manifest = restorer(tmp_path, attempt=2).restore(objects(3))
    assert manifest is not None
    assert manifest.step == 5
    store = open_store(str(tmp_path))
    assert (checkpoints.steps(store), keeping.quarantined(store)) == ([5, 9], {})
    (news,) = Mailbox(store).read()
    why = "a bit has flipped. Where it is stored it is whole, and stays"
    assert list(events_of(news, 1.0)) == [ev.CopyRefused(1.0, 2, 9, "node-0", why, newest=5)]


def test_a_generator_that_was_not_there_keeps_its_own_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 5, objects(1))
    capture = randomness.capture
    monkeypatch.setattr(
        randomness, "capture", lambda: {**capture(), "cuda": torch.zeros(16, dtype=torch.uint8)}
    )
    assert restorer(tmp_path).restore(objects(2)) is not None


def test_a_module_among_the_objects_keeps_its_tensors_apart(tmp_path: Path) -> None:
    average = torch.optim.swa_utils.AveragedModel(objects(1).model)
    rest, tensors = take_apart(average.state_dict())
    assert len(tensors) == len(average.state_dict())
    assert not any(torch.is_tensor(value) for value in rest.value.values())
    save(tmp_path, 5, replace(objects(1), others={"average": average}))
    other = torch.optim.swa_utils.AveragedModel(objects(2).model)
    restorer(tmp_path).restore(replace(objects(3), others={"average": other}))
    assert all(torch.equal(*pair) for pair in zip(average.parameters(), other.parameters(), strict=True))


def test_where_all_are_damaged_it_does_not_begin_anew_silently(tmp_path: Path) -> None:
    save(tmp_path, 5, objects(1))
    _damage(tmp_path, 5, "flip")
    with pytest.raises(CheckpointDamaged, match=r"none of the checkpoints \[5\] .* is whole"):
        restorer(tmp_path, attempt=2).restore(objects(2))


def test_a_copied_manifest_is_no_checkpoint_of_that_step(tmp_path: Path) -> None:
    """Whole in itself, and yet the run would silently go back to where it had been long ago."""
    good = objects(1)
    save(tmp_path, 5, objects(2))
    save(tmp_path, 9, good)
    copied = (tmp_path / layout.manifest(5)).read_bytes()
    (tmp_path / layout.manifest(12)).write_bytes(copied)
    with pytest.raises(
        CheckpointDamaged, match=r"name of step 12 is taken.* is a copy of the manifest of step 5"
    ):
        save(tmp_path, 12, objects(3))
    loaded = objects(4)
    manifest = restorer(tmp_path, attempt=2).restore(loaded)
    assert manifest is not None
    assert manifest.step == 9
    assert same(good, loaded)
    assert list(keeping.quarantined(open_store(str(tmp_path)))) == [12]
    save(tmp_path, 12, objects(5), attempt=2)
    restored = restorer(tmp_path, attempt=3).restore(objects(6))
    assert restored is not None
    assert restored.step == 12


def test_one_of_another_run_is_refused_and_nothing_is_overwritten(tmp_path: Path) -> None:
    def begin(name: str) -> Path:
        start_run(open_store(str(tmp_path / name)), RunSpec(("train.py",)))
        return tmp_path / name

    def files(run: Path) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    ours, theirs = begin("ours"), begin("theirs")
    save(ours, 5, good := objects(1))
    save(theirs, 9, objects(2))
    shutil.copytree(theirs / "checkpoints", ours / "checkpoints", dirs_exist_ok=True)
    before = files(ours)
    with pytest.raises(InvalidInput, match=r"checkpoint 9 in .* is of another run .* copied there after"):
        restorer(ours, attempt=2).restore(untouched := objects(3))
    assert same(untouched, objects(3))
    assert files(ours) == before

    # Nor does it push this run's own away.
    store = open_store(str(ours))
    assert keeping.prune(store, CheckpointPolicy(keep_last=1)) == []
    (ours / layout.manifest(9)).unlink()
    loaded = objects(4)
    assert restorer(ours, attempt=2).restore(loaded) is not None
    assert same(good, loaded)

    # What lies there when a run begins was put there for it to go on from.
    again = tmp_path / "again"
    shutil.copytree(ours / "checkpoints", again / "checkpoints")
    begin("again")
    assert restorer(again).restore(loaded) is not None
    save(again, 12, objects(5))
    assert keeping.prune(open_store(str(again)), CheckpointPolicy(keep_last=1)) == [5]


def test_a_part_that_is_a_copy_does_not_make_a_checkpoint(tmp_path: Path) -> None:
    """Of two workers one has written its part, and somebody has copied what it told."""
    first, second = (Worker(str(tmp_path), index=index, of=2) for index in (0, 1))
    first.save(objects(1), 3, Position(), reason="script", metrics={})
    (told,) = tmp_path.glob("checkpoints/data/*/part-*.json")
    for name in ("part-0000 (copy).json", "part-0001.json", "part-0002.json"):
        shutil.copy(told, told.with_name(name))
    first.persister.flush()
    assert checkpoints.steps(first.store) == []
    first.saver.save(objects(1), 4, Position(), reason="script", metrics={})
    first.persister.flush()
    second.save(objects(1), 4, Position(), reason="script", metrics={})
    assert checkpoints.steps(first.store) == [4]


class Counting(Far):
    """Says what is read of it."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.fetched: list[str] = []
        self.streamed: dict[str, int] = {}

    def download(
        self, key: str, path: Path, *, durable: bool = True, told: Callable[[int], None] = untold
    ) -> None:
        self.fetched.append(key)
        super().download(key, path, durable=durable, told=told)

    def stream(self, key: str, start: int, size: int) -> AbstractContextManager[Reader]:
        self.streamed[key] = self.streamed.get(key, 0) + size
        return super().stream(key, start, size)


@pytest.mark.parametrize("alike", [True, False])
def test_each_worker_has_what_may_differ_among_ranks_in_memory_where_it_does_not(
    alike: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first rank's counts, and of a mean over weights every rank has the same, as a rule."""

    def training(seed: int) -> Stateful:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        return Stateful(model, (), {"mean": torch.nn.Linear(4, 4), "best": torch.nn.Linear(2, 2)})

    saved = [training(1), training(1)]
    for number, one in enumerate(saved):
        one.model(torch.randn(8, 4, generator=torch.Generator().manual_seed(0 if alike else number)))
        torch.nn.init.constant_(one.others["mean"].weight, 0.0 if alike else number)
    workers = [Worker(str(tmp_path), index=index, of=2) for index in (0, 1)]
    for worker, one in zip(workers, saved, strict=True):
        worker.save(one, 3, Position(), reason="script", metrics={})
    loaded, far = [training(2), training(3)], [Counting(str(tmp_path)) for _ in workers]

    def restore(ranks: Ranks) -> None:
        room, stage = Room(tmp_path / "room", 1), workers[ranks.rank].stage
        assert Restorer(far[ranks.rank], ranks, attempt=2, room=room, stage=stage).restore(loaded[ranks.rank])

    together(2, restore)
    for one in loaded:
        for mine, first in zip(
            (one.model, *one.others.values()), (saved[0].model, *saved[0].others.values()), strict=True
        ):
            torch.testing.assert_close(mine.state_dict(), first.state_dict(), rtol=0, atol=0)
    assert far[0].streamed == {}
    assert bool(far[1].streamed) is not alike
    assert "is not what was committed" not in caplog.text
    assert Mailbox(workers[0].store).read() == []


@pytest.mark.parametrize("staged", [True, False])
def test_only_what_ranks_of_a_worker_need_more_than_once_is_fetched_whole(
    staged: bool, tmp_path: Path
) -> None:
    saved = wide(7)  # a layer of 6 MB for each of two files, twice that of the optimizer's
    workers = [Worker(str(tmp_path), index=index, of=2) for index in (0, 1)]
    for worker in workers:
        worker.save(saved, 3, Position(), reason="script", metrics={})
    manifest = checkpoints.read(workers[0].store, 3)
    far, told = Counting(str(tmp_path)), dict[int, list[tuple[int, int]]]()
    loaded = [wide(1), wide(2)]

    def restore(ranks: Ranks) -> bool:
        room = Room(tmp_path / "room", 2)
        stage = workers[0].stage if staged else None
        restorer = Restorer(
            far,
            ranks,
            attempt=2,
            room=room,
            stage=stage,
            told=lambda done, whole: told.setdefault(ranks.rank, []).append((done, whole)),
        )
        assert restorer.restore(loaded[ranks.rank]) is not None
        return restorer.verified

    # With one worker's part from memory nobody knows what storage has of it.
    assert together(2, restore) == [not staged] * 2
    assert all(same(one, saved) for one in loaded)
    assert sorted(told) == [0, 1]
    for steps in told.values():
        assert steps == sorted(steps), "it goes on, and of as much as was said at first"
        assert len({whole for _, whole in steps}) == 1
        assert steps[-1][0] == steps[-1][1] > 0
    if staged:  # all but the random state of the other worker's rank is in memory
        (other,) = (file for file in manifest.files if file.key.endswith("rank-00001.bin"))
        assert far.fetched == []
        assert far.streamed.keys() == {other.key}
        assert 0 < far.streamed[other.key] < other.size
    else:
        files = [file for file in manifest.files if file.key.endswith(".bin")]
        assert sorted(far.fetched) == [file.key for file in files]
        assert far.streamed == {}
        for rank, steps in told.items():  # each fetches one of them, and tells of parts of it
            size, whole = files[rank].size, steps[0][1]
            assert sum(0 < done < size for done, _ in steps) >= 2
            assert (size, whole) in steps
    assert not (tmp_path / "room").exists()


def test_a_hostile_pickle_beside_a_good_checkpoint_is_never_opened(tmp_path: Path) -> None:
    good = objects(1)
    save(tmp_path, 5, good)
    save(tmp_path, 9, objects(2))
    marker = tmp_path / "owned"
    values = tmp_path / layout.checkpoint_data(9, 1, 1) / "rank-00000.bin"
    values.write_bytes(b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR.")
    assert restorer(tmp_path, attempt=2).restore(objects(3)) is not None
    assert not marker.exists()


def wide(seed: int) -> Stateful:
    torch.manual_seed(seed)
    found = network(300_000, 300_000)
    for one in found.model.parameters():
        one.grad = torch.randn_like(one)
    found.optimizers[0].step()
    return found


@pytest.mark.parametrize("form", ["pickle", "archive"])
@pytest.mark.parametrize("key", ["other.diary.rest", "random.0.python", "model.0._extra_state"])
def test_a_hostile_checkpoint_with_all_its_checksums_is_never_unpickled(
    form: str, key: str, tmp_path: Path
) -> None:
    """Who can write into the run's folder can write a manifest, too."""

    def state(seed: int) -> Stateful:
        one = objects(seed)
        model = torch.nn.Sequential(Noting(4, 4), torch.nn.Linear(4, 1))
        return Stateful(model, (torch.optim.AdamW(model.parameters()),), {**one.others, "diary": Diary()})

    good, loaded, made = state(1), state(3), tmp_path / "made"
    save(tmp_path / "run", 5, good)
    with forging(key, Hostile(made), form):
        save(tmp_path / "run", 9, state(2))
    store = open_store(str(tmp_path / "run"))
    assert not checkpoints.problems(store, checkpoints.read(store, 9)), "nobody could tell by its checksums"
    with pytest.raises(InvalidInput) as refused:
        restorer(tmp_path / "run").restore(loaded)
    assert not made.exists()
    assert (
        f"checkpoint 9 of {store.uri} is whole, but {key} holds posix.mkdir, which is not unpickled"
        in str(refused.value)
    )
    assert "torch.serialization.add_safe_globals" in str(refused.value)
    # A script may have forgotten to say that it trusts a type: what it has saved is not set aside for that.
    assert (list(Mailbox(store).read()), checkpoints.steps(store)) == ([], [5, 9])
    assert not keeping.quarantined(store)
    store.delete([layout.manifest(9)])  # as it says
    manifest = restorer(tmp_path / "run").restore(loaded)
    assert manifest is not None
    assert manifest.step == 5
    assert torch.equal(good.model[0].weight, loaded.model[0].weight)  # type: ignore[index, union-attr]


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ({"last_epoch": 3}, "is a dict, and no state as airflow-elastic writes them"),
        (Rest({"table": Held("/table")}), "names a tensor, '/table', that the checkpoint does not have"),
        (Rest([HeldArray("array:/1")]), "names a tensor, 'array:/1', that the checkpoint does not have"),
    ],
)
def test_an_object_that_somebody_else_has_written_is_refused(rest: object, why: str, tmp_path: Path) -> None:
    with forging("other.schedule.rest", rest, "pickle"):
        save(tmp_path, 9, objects(2))
    with pytest.raises(InvalidInput, match=f"checkpoint 9 of .* is whole, but its 'schedule' {why}"):
        restorer(tmp_path).restore(objects(1))
    assert checkpoints.steps(open_store(str(tmp_path))) == [9]


class Noting(torch.nn.Linear):
    """Its state is not all tensors."""

    def get_extra_state(self) -> str:
        return "a note"

    def set_extra_state(self, state: Any) -> None:
        assert state == "a note"


@dataclass
class Mood:
    """Of a script's own."""

    name: str


def test_what_no_restore_would_unpickle_is_refused_with_the_first_save(tmp_path: Path) -> None:
    diary = Diary("mon")
    diary.pages["mood"] = [Mood("good")]
    what = replace(objects(1), others={"diary": diary})
    with pytest.raises(
        InvalidInput, match=rf"other\.diary\['pages'\]\['mood'\]\[0\] holds {__name__}\.Mood, "
    ):
        save(tmp_path, 5, what)
    with torch.serialization.safe_globals([Mood]):
        save(tmp_path, 5, what)
        loaded = Diary()
        restorer(tmp_path).restore(replace(objects(2), others={"diary": loaded}))
    assert loaded.pages["mood"] == [Mood("good")]


def test_one_that_is_damaged_as_well_is_set_aside_like_any_other(tmp_path: Path) -> None:
    diary = Diary()
    diary.pages["mood"] = Mood("good")
    save(tmp_path, 5, replace(wide(1), others={"diary": Diary()}))
    with torch.serialization.safe_globals([Mood]):
        save(tmp_path, 9, replace(wide(1), others={"diary": diary}))
    _damage(tmp_path, 9, "flip")
    manifest = restorer(tmp_path).restore(replace(wide(2), others={"diary": Diary()}))
    assert manifest is not None
    assert manifest.step == 5
    assert list(keeping.quarantined(open_store(str(tmp_path)))) == [9]


def test_what_the_script_does_not_trust_any_more_stays(tmp_path: Path) -> None:
    """A script that has forgotten to say so again loses nothing."""
    diary = Diary()
    diary.pages["mood"] = Mood("good")
    with torch.serialization.safe_globals([Mood]):
        for step in (5, 9):
            save(tmp_path, step, replace(objects(1), others={"diary": diary}))
    with pytest.raises(InvalidInput, match=r"checkpoint 9 .*Mood, which is not unpickled"):
        restorer(tmp_path).restore(replace(objects(2), others={"diary": Diary()}))
    with torch.serialization.safe_globals([Mood]):
        manifest = restorer(tmp_path, attempt=3).restore(replace(objects(2), others={"diary": Diary()}))
    assert manifest is not None
    assert manifest.step == 9


def network(*widths: int, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW) -> Stateful:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, width) for width in widths))
    return Stateful(model, (optimizer(model.parameters(), lr=0.1),), {})


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (network(3), r"the script has no model\.1\.bias"),
        (network(3, 4), r"model\.1\.bias is \(4,\) in the script and \(5,\) in the checkpoint"),
        (network(3, 5, 6), r"the checkpoint has no model\.2\.bias"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_and_nothing_changed(
    tmp_path: Path, other: Stateful, said: str
) -> None:
    save(tmp_path, 5, network(3, 5))
    before = [parameter.clone() for parameter in other.model.parameters()]
    with pytest.raises(InvalidInput, match=rf"checkpoint 5 of {tmp_path} is of another model.*: .*{said}"):
        restorer(tmp_path).restore(other)
    assert all(torch.equal(*pair) for pair in zip(before, other.model.parameters(), strict=True))


class Partly(torch.nn.Module):
    """A model of which one layer is not used in its first steps, so that the optimizer has no state for it."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.later = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def train_on(self, optimizer: torch.optim.Optimizer, *, all_of_it: bool) -> None:
        out = self.used(torch.ones(2, 4))
        (self.later(out) if all_of_it else out).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def test_a_parameter_that_was_not_used_yet_comes_back_without_a_state(tmp_path: Path) -> None:
    made = []
    for _ in range(2):
        torch.manual_seed(1)
        model = Partly()
        made.append(Stateful(model, (torch.optim.AdamW(model.parameters(), lr=0.1),), {}))
    saved, loaded = made
    saved.model.train_on(saved.optimizers[0], all_of_it=False)  # type: ignore[operator]
    save(tmp_path, 5, saved)
    assert restorer(tmp_path).restore(loaded) is not None
    for one in made:
        assert len(one.optimizers[0].state) == 2, "of the layer that was used, its weight and its bias"
        one.model.train_on(one.optimizers[0], all_of_it=True)  # type: ignore[operator]
    vectors = [torch.nn.utils.parameters_to_vector(one.model.parameters()) for one in made]
    assert torch.equal(*vectors)


def _step_scaled(what: Stateful, data: torch.Tensor) -> None:
    scaler, (optimizer,) = what.others["scaler"], what.optimizers
    scaler.scale(what.model(data).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def test_a_gradient_scaler_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Of a scale that has grown and shrunk, in the middle of the steps after which it grows again."""

    def scaled(seed: int) -> Stateful:
        torch.manual_seed(seed)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1000.0, growth_factor=1.7, growth_interval=3)
        return Stateful(model, (optimizer,), {"scaler": scaler})

    def told(what: Stateful) -> tuple[Any, bytes]:
        weights = torch.nn.utils.parameters_to_vector(what.model.parameters()).detach()
        return what.others["scaler"].state_dict(), weights.numpy().tobytes()

    saved, loaded = scaled(1), scaled(2)
    good, overflow = torch.randn(2, 4), torch.full((2, 4), torch.inf)
    for data in (good, good, good, overflow, good, good):
        _step_scaled(saved, data)
    scale, waited = saved.others["scaler"].get_scale(), saved.others["scaler"]._get_growth_tracker()
    assert (scale, waited) == (torch.tensor(1000 * 1.7).item() * 0.5, 2)
    save(tmp_path, 6, saved)
    assert restorer(tmp_path).restore(loaded) is not None
    assert told(loaded) == told(saved)
    for data in (good, overflow, good):
        for what in (saved, loaded):
            _step_scaled(what, data)
        assert told(loaded) == told(saved)
    assert saved.others["scaler"].get_scale() != scale


class Diary:
    """A user's own object, which has more to say the longer it lives."""

    def __init__(self, *days: str) -> None:
        self.pages: dict[str, Any] = {
            day: [len(day), {"words": torch.full((2,), float(len(day)))}] for day in days
        }

    def state_dict(self) -> dict[str, Any]:
        return {"pages": self.pages, "last": list(self.pages)[-1:]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pages = state["pages"]


def test_objects_of_the_users_own_come_back_as_they_were(tmp_path: Path) -> None:
    """Also where they have other keys by now than a new one has: what is unknown would be left out in silence."""
    saved, fresh, older = Diary("mon", "tuesday"), Diary(), Diary("mon", "a day that never came")
    save(tmp_path, 5, replace(objects(1), others={"diary": saved}))
    for diary in (fresh, older):
        restorer(tmp_path).restore(replace(objects(2), others={"diary": diary}))
        assert diary.pages.keys() == {"mon", "tuesday"}
        assert torch.equal(diary.pages["tuesday"][1]["words"], torch.tensor([7.0, 7.0]))
        assert diary.pages["mon"][0] == 3


def _damage(uri: Path, step: int, damage: str) -> None:
    path = uri / layout.checkpoint_data(step, 1, 1) / "rank-00000.bin"
    data = bytearray(path.read_bytes())
    match damage:
        case "flip":
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        case "truncate":
            path.write_bytes(data[:-1])
        case "extend":
            path.write_bytes(data + b"\0")
        case "remove":
            path.unlink()
        case "deep manifest":  # deeper than a parser goes
            (uri / layout.manifest(step)).write_text("[" * 200_000)
        case "manifest":
            (uri / layout.manifest(step)).write_text("{")
