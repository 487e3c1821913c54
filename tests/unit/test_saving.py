"""A checkpoint exists when its manifest does, and what is loaded is what was committed, or nothing."""

from __future__ import annotations

import copy
import logging
import os
import subprocess
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from airflow_elastic.adapters import checkpoints, keeping
from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.journal import Journal
from airflow_elastic.adapters.mailbox import CheckpointTrouble, Mailbox
from airflow_elastic.adapters.reports import raise_fence
from airflow_elastic.adapters.store import Store
from airflow_elastic.adapters.stores import open_store
from airflow_elastic.runtime import persister, randomness, restoring
from airflow_elastic.runtime.apart import take_apart
from airflow_elastic.runtime.flat_reader import Loading
from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.runtime.restoring import Restorer, Room
from airflow_elastic.runtime.saving import Position, Stateful, _buffers
from airflow_elastic.runtime.stage import Stage
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import InvalidInput, StoreError
from tests.support.saving import Worker


def objects(seed: int) -> Stateful:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    return Stateful(model, (optimizer,), {"schedule": torch.optim.lr_scheduler.StepLR(optimizer, 3)})


def restorer(uri: Path, *, attempt: int = 2, stage: Stage | None = None) -> Restorer:
    room = Room(uri.with_name("room"), 1)
    return Restorer(open_store(str(uri)), Ranks(0, 1, None), attempt=attempt, room=room, stage=stage)


def save(uri: Path, step: int, what: Stateful, *, attempt: int = 1, keep_last: int = 3) -> Worker:
    worker = Worker(str(uri), attempt=attempt, keep_last=keep_last)
    worker.save(what, step, Position(1, 10, step * 10), reason="script", metrics={"loss": 0.5})
    return worker


def same(one: Stateful, other: Stateful) -> bool:
    ours, theirs = (torch.nn.utils.parameters_to_vector(o.model.parameters()) for o in (one, other))
    states = [o.optimizers[0].state_dict()["state"][0]["exp_avg"] for o in (one, other)]
    return bool(torch.equal(ours, theirs) and torch.equal(*states))


def test_what_is_saved_is_what_is_restored(tmp_path: Path) -> None:
    saved, loaded = objects(1), objects(2)
    torch.manual_seed(5)
    save(tmp_path, 7, saved)
    expected = torch.rand(3)
    manifest = restorer(tmp_path, attempt=2).restore(loaded)
    assert manifest is not None
    assert (manifest.step, manifest.epoch, manifest.offset, manifest.samples) == (7, 1, 10, 70)
    assert same(saved, loaded)
    assert torch.equal(torch.rand(3), expected), "the generators do not go on from where they were"


def written_by_the_thread(worker: Worker, step: int) -> list[int]:
    """Save for memory only; what the thread that writes makes of it."""
    worker.saver.save(objects(step), step, Position(), reason="memory", metrics={})
    worker.persister.write_new()
    return checkpoints.steps(worker.store)


def test_what_is_for_memory_only_is_written_when_something_happens_and_not_before(tmp_path: Path) -> None:
    worker = Worker(str(tmp_path))
    assert written_by_the_thread(worker, 1) == []
    worker.saver.save(objects(2), 2, Position(), reason="steps", metrics={})
    # It is still to be written: what comes next does not take its place.
    for step in (3, 4, 5):
        worker.saver.save(objects(step), step, Position(), reason="memory", metrics={})
    worker.persister.write_new()
    assert checkpoints.steps(worker.store) == [2]
    for step in (6, 7, 8):
        assert written_by_the_thread(worker, step) == [2]
    worker.persister.flush()
    assert checkpoints.steps(worker.store) == [2, 7, 8], "another worker may not have come to step 8"
    loaded = objects(1)
    manifest = restorer(tmp_path).restore(loaded)
    assert manifest is not None
    assert (manifest.step, manifest.reason) == (8, "memory")
    assert same(objects(8), loaded)


def test_a_step_that_is_in_memory_already_can_be_saved_all_the_same(tmp_path: Path) -> None:
    worker = Worker(str(tmp_path))
    for step in (1, 2):
        assert written_by_the_thread(worker, step) == []
    worker.saver.save(objects(2), 2, Position(), reason="final", metrics={"loss": 1.0})
    worker.persister.write_new()
    assert checkpoints.steps(worker.store) == [2]
    assert checkpoints.read(worker.store, 2).reason == "final"


def test_a_save_of_a_step_that_is_being_looked_at_in_memory_waits_and_is_written(tmp_path: Path) -> None:
    worker = Worker(str(tmp_path))
    worker.saver.save(objects(1), 1, Position(), reason="memory", metrics={})
    (slot,) = (slot for slot in worker.node.slots.of[0] if slot.age)
    assert slot.hold()  # as the agent does, to see what it is
    final = threading.Thread(
        target=worker.saver.save,
        args=(objects(1), 1, Position()),
        kwargs={"reason": "final", "metrics": {}},
    )
    final.start()
    final.join(0.2)
    assert final.is_alive(), "there are two slots of one step now"
    slot.release()
    final.join(60)
    worker.persister.write_new()
    assert checkpoints.read(worker.store, 1).reason == "final"


def test_a_step_that_is_still_to_be_written_is_not_copied_into_memory_again(tmp_path: Path) -> None:
    worker = Worker(str(tmp_path))
    worker.saver.save(objects(1), 1, Position(), reason="seconds", metrics={})
    for step in (1, 2, 3):  # and nobody waits for ever
        worker.saver.save(objects(step), step, Position(), reason="memory", metrics={})
    ages = [slot.age for slot in worker.node.slots.of[0]]
    assert sorted(ages) == [(1, 1), (1, 3)]  # type: ignore[type-var]
    worker.persister.write_new()
    assert checkpoints.steps(worker.store) == [1]


def test_what_somebody_has_locked_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persister, "_LOCKED_SECONDS", 0.1)
    worker = Worker(str(tmp_path))
    worker.saver.save(objects(1), 1, Position(), reason="steps", metrics={})
    (slot,) = (slot for slot in worker.stage._slots if slot.age)
    assert slot.hold()
    with pytest.raises(StoreError, match="locked by somebody"):
        worker.persister.flush()
    slot.release()
    worker.persister.flush()
    assert checkpoints.steps(worker.store) == [1]


def test_buffers_are_known_by_the_names_that_states_have() -> None:
    class Deep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.submodule = torch.nn.Sequential(torch.nn.BatchNorm1d(2))

    model = torch.nn.Sequential(Deep())
    names = {name for name in get_model_state_dict(model) if "running" in name or "tracked" in name}
    assert _buffers(model) == {f"model.{name}" for name in names}


def test_a_manifest_says_how_far_the_journal_was(tmp_path: Path) -> None:
    save(tmp_path, 5, objects(1))
    store = open_store(str(tmp_path))
    journal = Journal(store)
    for seq in range(12):
        assert journal.append(seq, ev.StopRequested(1.0, "save", "somebody"))
    save(tmp_path, 9, objects(1))
    assert [checkpoints.read(store, step).journal for step in (5, 9)] == [-1, 11]


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
    slot, at = worker.stage.memory(1, 7)["model.0.weight", (0, 0)]
    os.pwrite(slot.fileno(), b"\xff", at)
    assert restorer(tmp_path, stage=worker.stage).restore(loaded) is not None
    assert same(saved, loaded)
    assert "model.0.weight in the memory of this worker's agent is not what was committed" in caplog.text
    assert "reading again, from storage alone" in caplog.text


def test_one_process_alone_is_not_warned_of(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(tmp_path, 7, objects(1))
        assert restorer(tmp_path, attempt=2).restore(objects(2)) is not None


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


@pytest.mark.parametrize("how", ["override", "whole", "pre", "post", "of one object", "saved otherwise"])
def test_modules_that_see_to_loading_are_asked(tmp_path: Path, how: str) -> None:
    """Those that do not find in themselves what was read."""
    model, asked = told(how)
    before = copy.deepcopy(model.state_dict())
    save(tmp_path, 1, trained(model))
    for tensor in model.parameters():
        torch.nn.init.zeros_(tensor)
    restorer(tmp_path).restore(trained(model))
    parameters = dict(model.named_parameters())
    assert all(torch.equal(parameters[name], before[name]) for name in before)
    assert asked or getattr(model[0], "asked", 0) or getattr(model, "asked", how == "saved otherwise")  # type: ignore[index]


def trained(model: torch.nn.Module) -> Stateful:
    return Stateful(model, (torch.optim.SGD(model.parameters(), lr=0.0),), {})


def test_what_is_read_into_a_plain_model_is_not_copied_onto_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, objects(1))
    monkeypatch.delattr(restoring, "set_state_dict")
    loaded = objects(2)
    restorer(tmp_path).restore(loaded)
    assert same(loaded, objects(1))


def test_a_buffer_without_memory_of_its_own_is_in_nobodys_way(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer("adjacent", torch.eye(2).to_sparse(), persistent=False)
    save(tmp_path, 1, trained(model))
    assert restorer(tmp_path).restore(trained(model)) is not None


def test_a_model_without_an_optimizer_is_restored(tmp_path: Path) -> None:
    saved, loaded = (replace(objects(seed), optimizers=(), others={}) for seed in (1, 2))
    save(tmp_path, 7, saved)
    assert restorer(tmp_path).restore(loaded) is not None
    vectors = [torch.nn.utils.parameters_to_vector(one.model.parameters()) for one in (saved, loaded)]
    assert torch.equal(*vectors)


def test_where_there_is_none_nothing_changes(tmp_path: Path) -> None:
    fresh, untouched = objects(1), objects(1)
    assert restorer(tmp_path).restore(fresh) is None
    assert same(fresh, untouched)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "extend", "manifest"])
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
    (news,) = Mailbox(store).read()
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


def test_what_only_one_machine_cannot_read_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 5, objects(1))
    save(tmp_path, 9, objects(2))
    read = Loading.read

    def bad_memory(self: Loading, store: Store) -> None:
        read(self, store)
        if self.manifest.step == 9:
            raise CheckpointDamaged("a bit has flipped")

    monkeypatch.setattr(Loading, "read", bad_memory)
    manifest = restorer(tmp_path, attempt=2).restore(objects(3))
    assert manifest is not None
    assert manifest.step == 5
    store = open_store(str(tmp_path))
    assert (checkpoints.steps(store), keeping.quarantined(store), Mailbox(store).read()) == ([5, 9], {}, [])


def test_old_checkpoints_that_stay_cost_no_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(str(tmp_path), keep_last=1)

    def refuse(keys: object) -> None:
        raise StoreError("you may not delete")

    for step in (5, 9):
        worker.save(objects(1), step, Position(), reason="steps", metrics={})
        if step == 5:
            monkeypatch.setattr(worker.store, "delete", refuse)
    assert checkpoints.steps(worker.store) == [5, 9]


def test_what_could_not_be_written_is_tried_again_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(str(tmp_path))
    write = worker.store.write

    def refuse(key: str, data: memoryview) -> None:
        raise StoreError("the storage is out of reach")

    monkeypatch.setattr(worker.store, "write", refuse)
    worker.saver.save(objects(1), 5, Position(), reason="final", metrics={})
    with pytest.raises(StoreError):
        worker.persister.write_new()
    worker.persister.write_new()  # it is not tried for ever while training goes on
    with pytest.raises(StoreError):
        worker.persister.flush()
    monkeypatch.setattr(worker.store, "write", write)
    worker.persister.flush()
    assert checkpoints.steps(worker.store) == [5]


def test_a_manifest_that_cannot_be_read_costs_no_files(tmp_path: Path) -> None:
    save(tmp_path, 5, objects(1))
    save(tmp_path, 9, objects(2))
    path = tmp_path / layout.manifest(9)
    newer = path.read_text().replace('"version": 2', '"version": 3')
    assert newer != path.read_text()
    path.write_text(newer)
    store = open_store(str(tmp_path))
    assert keeping.uncommitted(store, 2) == []
    assert restorer(tmp_path, attempt=2).restore(objects(3)) is not None
    assert keeping.uncommitted(store, 3) == []
    assert store.list(layout.checkpoint_data(9, 1, 1))
    assert keeping.quarantined(store) == {}, "another release may read it"


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


def test_a_full_disk_costs_a_save_and_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"run as root where a small file system can be mounted ({made.stderr.strip()})")
    try:
        small, large = objects(1), Stateful(torch.nn.Linear(600, 600), (), {})
        save(disk, 5, small)
        worker = Worker(str(disk))
        with pytest.raises(StoreError, match="the disk is full"):
            worker.save(large, 9, Position(), reason="steps", metrics={})
        store = open_store(str(disk))
        (news,) = Mailbox(store).read()
        assert (news.kind, news.by) == ("unsaved", "node-0")
        assert news.checkpoint is not None
        assert news.checkpoint.step == 9
        assert "the disk is full" in news.checkpoint.reason
        assert store.list(layout.checkpoint_data(9, 1, 1)) == []
        worker.save(small, 12, Position(), reason="steps", metrics={})
        assert checkpoints.steps(store) == [5, 12]
        loaded = objects(2)
        assert restorer(disk, attempt=2).restore(loaded) is not None
        assert same(small, loaded)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_where_all_are_damaged_it_does_not_begin_anew_silently(tmp_path: Path) -> None:
    save(tmp_path, 5, objects(1))
    _damage(tmp_path, 5, "flip")
    with pytest.raises(CheckpointDamaged, match=r"none of the checkpoints \[5\] .* is whole"):
        restorer(tmp_path, attempt=2).restore(objects(2))


def test_a_hostile_pickle_beside_a_good_checkpoint_is_never_opened(tmp_path: Path) -> None:
    good = objects(1)
    save(tmp_path, 5, good)
    save(tmp_path, 9, objects(2))
    marker = tmp_path / "owned"
    values = tmp_path / layout.checkpoint_data(9, 1, 1) / "rank-00000.bin"
    values.write_bytes(b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR.")
    assert restorer(tmp_path, attempt=2).restore(objects(3)) is not None
    assert not marker.exists()


def network(*widths: int, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW) -> Stateful:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, width) for width in widths))
    return Stateful(model, (optimizer(model.parameters(), lr=0.1),), {})


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (network(3), r"the script has no model\.1\.bias"),
        (network(3, 4), r"model\.1\.bias is \(4,\) in the script and \(5,\) in the checkpoint"),
        (network(3, 5, 6), r"the checkpoint has no model\.2\.bias"),
        (network(3, 5, optimizer=torch.optim.SGD), r"the script has no optimizer\.state\.0\.bias\.exp_avg"),
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


def test_a_superseded_attempt_commits_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(str(tmp_path))
    raise_fence(store, 1)
    save(tmp_path, 5, objects(1))
    raise_fence(store, 2)
    with caplog.at_level(logging.WARNING):
        late = save(tmp_path, 6, objects(1))
    assert "attempt 2 has begun: attempt 1 commits nothing any more" in caplog.text
    assert late.node.stop_at is not None, "it trains on for nothing"
    assert checkpoints.steps(store) == [5]


def test_a_step_committed_before_stays_what_it_was(tmp_path: Path) -> None:
    first = objects(1)
    save(tmp_path, 5, first)
    save(tmp_path, 5, objects(2), attempt=2)
    loaded = objects(3)
    assert restorer(tmp_path, attempt=3).restore(loaded) is not None
    assert same(first, loaded)


def test_only_the_newest_are_kept_and_nothing_of_the_others(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step, objects(step), keep_last=2)
    store = open_store(str(tmp_path))
    assert checkpoints.steps(store) == [3, 4]
    assert {e.key.split("/")[2] for e in store.list(layout.CHECKPOINT_DATA)} == {
        "000000000003-a0001-g01",
        "000000000004-a0001-g01",
    }


def test_what_a_save_that_was_cut_off_left_is_removed_by_the_next_attempt(tmp_path: Path) -> None:
    save(tmp_path, 5, objects(1))
    store = open_store(str(tmp_path))
    for attempt in (1, 2):
        store.put(f"{layout.checkpoint_data(9, attempt, 1)}rank-00000.bin", b"half")
    restorer(tmp_path, attempt=2).restore(objects(2))
    folders = {entry.key.split("/")[2] for entry in store.list(layout.CHECKPOINT_DATA)}
    assert folders == {"000000000005-a0001-g01", "000000000009-a0002-g01"}


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
        case "manifest":
            (uri / layout.manifest(step)).write_text("{")
