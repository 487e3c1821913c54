"""Who keeps what of a state, and that all of it together is the state."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from airflow_elastic.runtime.checkpoint.save.layout import Layout
from airflow_elastic.runtime.checkpoint.save.staging import RankPosition, lay_out
from airflow_elastic.runtime.checkpoint.save.staging_area import StagingArea
from airflow_elastic.runtime.staying.agent_link import LeaveGeneration
from airflow_elastic.runtime.tiers.shared_memory import ENVIRONMENT, Note, StagingSlots
from airflow_elastic.spec.checkpoints.index import Blob, Index, TensorChunk
from airflow_elastic.spec.checkpoints.sample_records import Account, Consumed, Ended, Span
from airflow_elastic.spec.errors import InvalidInput

STATES = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.tuples(st.integers(0, 50), st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool])),
    min_size=1,
)


def memory_of(plan: Layout) -> memoryview:
    memory = memoryview(bytearray(max(plan.total_bytes, 1)))
    plan.copy_into(memory)
    return memory


@given(STATES, st.sampled_from([(1, 1), (2, 1), (2, 2), (6, 2), (4, 4)]))
def test_what_all_have_alike_is_written_once_and_each_worker_has_all_of_it(
    sizes: dict[str, tuple[int, torch.dtype]], world: tuple[int, int]
) -> None:
    ranks, procs = world
    state = {key: torch.ones(size, dtype=dtype) for key, (size, dtype) in sizes.items()}
    plans = [lay_out(state, RankPosition(rank, ranks, procs), own=f"random.{rank}") for rank in range(ranks)]
    written = [piece.key for plan in plans for piece in plan.kept.pieces]
    assert sorted(written) == sorted(state)
    for node in range(ranks // procs):
        there = [part.key for plan in plans[node * procs : (node + 1) * procs] for part in plan.places.parts]
        assert sorted(there) == sorted(state)


@given(STATES)
def test_copied_it_is_byte_for_byte_what_it_was(sizes: dict[str, tuple[int, torch.dtype]]) -> None:
    state = {key: torch.randint(0, 2, (size,)).to(dtype) for key, (size, dtype) in sizes.items()}
    plan = lay_out({**state, "step": 7}, RankPosition(0, 1, 1), own="random.0")
    memory = memory_of(plan)
    for piece in plan.kept.pieces:
        bytes_ = memory[piece.at : piece.at + piece.size]
        found = torch.frombuffer(bytes_, dtype=getattr(torch, piece.dtype)) if piece.size else torch.empty(0)
        assert torch.equal(found.to(state[piece.key].dtype), state[piece.key])
    assert [blob.key for blob in plan.kept.blobs] == ["step"]
    assert all(piece.at + piece.size <= plan.kept_bytes for piece in plan.kept.pieces)


def test_a_value_that_has_grown_moves_what_lies_behind_it() -> None:
    """Where tensors lie is remembered from save to save; those that are not written lie behind the values."""
    state = {key: torch.randint(0, 100, (size,)) for key, size in zip("abcd", (9, 7, 5, 3), strict=True)}
    for words in ("", "a word" * 100, ""):
        plan = lay_out({**state, "words": words}, RankPosition(0, 2, 1), own="random.0")
        memory = memory_of(plan)
        pieces = (*plan.kept.pieces, *plan.rest.pieces)
        assert plan.rest.pieces
        assert {piece.key for piece in pieces} == state.keys()
        for piece in pieces:
            found = torch.frombuffer(memory[piece.at : piece.at + piece.size], dtype=torch.int64)
            assert torch.equal(found, state[piece.key])
        assert all(piece.at >= plan.kept_bytes for piece in plan.rest.pieces)


def test_buffers_are_the_first_ranks_and_random_states_are_everybodys_own() -> None:
    """Each worker has its first rank's in memory: they may be the same."""
    for rank in range(4):
        state: dict[str, Any] = {
            "model": {"mean": torch.full((3,), float(rank))},
            "other.schedule": {"rest": rank},
            f"random.{rank}": {"torch": torch.zeros(2)},
        }
        plan = lay_out(state, RankPosition(rank, 4, 2), own=f"random.{rank}", first={"model.mean"})
        keys = [piece.key for piece in plan.kept.pieces]
        assert keys == [*(["model.mean"] if rank == 0 else []), f"random.{rank}.torch"]
        assert [blob.key for blob in plan.kept.blobs] == (["other.schedule.rest"] if rank == 0 else [])
        assert [piece.key for piece in plan.perhaps.pieces] == (["model.mean"] if rank == 2 else [])
        assert [blob.key for blob in plan.perhaps.blobs] == (["other.schedule.rest"] if rank == 2 else [])
        memory = memory_of(plan)
        for piece in plan.perhaps.pieces:
            assert piece.at >= plan.kept_bytes
            assert torch.frombuffer(memory, dtype=torch.float32, offset=piece.at, count=3).eq(rank).all()


def test_what_is_of_use_perhaps_refuses_nothing() -> None:
    """Only what the first rank has is saved: what others have there may be anything."""
    odd = {"tensors": {"/0": torch.ones(2, device="meta")}, "rest": object()}
    plan = lay_out({"other.odd": odd, "model": {"a": torch.ones(2)}}, RankPosition(1, 2, 1), own="random.1")
    assert (plan.perhaps.pieces, plan.perhaps.blobs) == ((), ())


def test_own_objects_that_differ_among_ranks_cost_no_tensor_of_the_model() -> None:
    """Who keeps what follows from names and sizes: those of the model alone, which all ranks have alike."""
    kept = []
    for rank, size in enumerate((5, 1)):
        model = {name: torch.ones(number) for name, number in (("a", 4), ("b", 3), ("c", 2))}
        state: dict[str, Any] = {"model": model, "other.history": {"tensors": {"/0": torch.ones(size)}}}
        plan = lay_out(state, RankPosition(rank, 2, 1), own=f"random.{rank}")
        kept += [piece.key for piece in plan.kept.pieces]
    assert sorted(kept) == ["model.a", "model.b", "model.c", "other.history.tensors./0"]


def note(step: int) -> Note:
    return Note(step, 1, 0, 1, 0, 0, 0, "steps", 4, Index((), ()), Index((), ()))


class Named(str):
    """As torch's version is, and names that a script may have made."""


def test_a_note_comes_back_as_it_was() -> None:
    consumed = Consumed(3, 0, (5, 2), (Span(1, 0, 4),), (Ended(1, 4),))
    pieces = (TensorChunk(Named("other.ä"), "float32", (2, 3), (0, 0), (2, 3), 0, 24),)
    noted = Note(
        *(7, 1, 0, 1, 0, 0, 0, "steps", 24, Index(pieces, (Blob("b", 24, 3),)), Index((), ())),
        metrics={Named("loss"): 0.1},
        versions={"torch": torch.__version__},
        account=Account(1, 1, 0, 1, 0, 10, (consumed,)),
    )
    slot = StagingSlots(1).of[0][0]
    slot.room(27)
    slot.finish(27, noted)
    assert slot.note() == noted


def stage(slots: StagingSlots, monkeypatch: pytest.MonkeyPatch) -> StagingArea:
    for name, value in slots.environment().items():
        monkeypatch.setenv(name, value)
    found = StagingArea.found(0)
    assert found is not None
    return found


def test_of_two_slots_one_is_always_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = StagingSlots(1)
    mine = stage(slots, monkeypatch)
    plan = lay_out({"a": torch.ones(1)}, RankPosition(0, 1, 1), own="random.0")
    for step in (1, 2, 3):
        mine.put(plan, note(step))
    assert sorted(slot.note().step for slot in slots.of[0] if slot.note()) == [2, 3]  # type: ignore[union-attr]


def test_slots_take_their_files_with_them() -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = open_files()
    slots = StagingSlots(2)
    again = slots.opened_again()
    assert open_files() == before + 10
    del slots, again
    assert open_files() == before


def test_a_slot_that_is_read_is_not_copied_into(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = StagingSlots(1)
    mine = stage(slots, monkeypatch)
    plan = lay_out({"a": torch.ones(1)}, RankPosition(0, 1, 1), own="random.0")
    mine.put(plan, note(1))
    (held,) = [slot for slot in slots.of[0] if slot.age]
    assert held.hold()
    for step in (2, 3, 4):
        mine.put(plan, note(step))
    assert sorted(slot.note().step for slot in slots.of[0] if slot.note()) == [1, 4]  # type: ignore[union-attr]


def test_a_copy_that_was_cut_off_is_not_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = StagingSlots(1)
    mine = stage(slots, monkeypatch)
    torn = lay_out({"a": torch.ones(1)}, RankPosition(0, 1, 1), own="random.0")
    mine.put(torn, note(1))

    def die(memory: memoryview) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Layout, "copy_into", lambda self, memory: die(memory))
    with pytest.raises(KeyboardInterrupt):
        mine.put(torn, note(2))
    assert [slot.note().step for slot in slots.of[0] if slot.note()] == [1]  # type: ignore[union-attr]


@pytest.mark.parametrize("beside", [False, True], ids=["at-once", "overlap"])
def test_what_a_gpu_computes_of_aborted_collectives_does_not_count(
    beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors of a processor, of which the layout says that a GPU has them: once it has begun to copy, with overlap."""

    def gpus(_: Layout) -> list[torch.device]:
        copying = threading.current_thread().name == "copying"
        return [torch.device("cuda", 0)] if copying or not beside else []

    def put(step: int) -> None:
        if beside:
            mine.put_beside(plan, note(step)).join()
        else:
            mine.put(plan, note(step))

    monkeypatch.setattr(Layout, "gpus", property(gpus))
    monkeypatch.setattr("airflow_elastic.runtime.checkpoint.save.staging_area.pin", lambda *_: None)
    slots = StagingSlots(1)
    mine = stage(slots, monkeypatch)
    plan = lay_out({"a": torch.ones(1)}, RankPosition(0, 1, 1), own="random.0")
    for step in (1, 2):
        put(step)
    mine.is_aborted = lambda: True
    with contextlib.nullcontext() if beside else pytest.raises(LeaveGeneration):
        put(3)
    assert sorted(slot.age or () for slot in slots.of[0]) == [(), (1, 2)]
    mine.is_aborted = lambda: False
    for step in (4, 5):  # its slot is free again
        put(step)
    assert sorted(slot.age or () for slot in slots.of[0]) == [(1, 4), (1, 5)]


def test_the_agent_provides_memory_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = StagingSlots(1)
    mine = stage(slots, monkeypatch)
    plan = lay_out({"a": torch.ones(5_000_000)}, RankPosition(0, 1, 1), own="random.0")
    mine.announce(plan)
    assert os.read(slots.news, 10) == b"."
    for slot in slots.of[0]:
        slot.provide()

    def grow(descriptor: int, offset: int, size: int) -> None:
        raise AssertionError("memory is taken while training waits")

    monkeypatch.setattr(os, "posix_fallocate", grow)
    mine.put(plan, note(1))
    mine.put(plan, note(2))


def test_what_the_agent_has_provided_is_mapped_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = StagingSlots(1)
    mine = stage(slots, monkeypatch)
    plan = lay_out({"a": torch.ones(5_000_000)}, RankPosition(0, 1, 1), own="random.0")
    mapping = mine.announce(plan)
    for slot in slots.of[0]:
        slot.provide()
    mapping.join(60)
    assert not mapping.is_alive()
    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", None)  # it is not mapped while training waits
        mine.put(plan, note(1))
        mine.put(plan, note(2))
    # Nor for ranks that come later.
    again = stage(slots, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(mmap, "MAP_POPULATE", None)  # what is mapped beside training is not mapped like this
        again.announce(plan).join(60)
        again.put(plan, note(3))
    assert [slot.age for slot in slots.of[0]] == [(1, 3), (1, 2)]
    assert bytes(slots.of[0][1].data(8)) == bytes(torch.ones(2).numpy())


def test_a_save_that_is_earlier_than_its_memory_is_waited_for_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots = StagingSlots(1)
    mine = stage(slots, monkeypatch)
    plan = lay_out({"a": torch.ones(5_000_000)}, RankPosition(0, 1, 1), own="random.0")
    mapping = mine.announce(plan)
    mine.put(plan, note(1))
    mine.put(plan, note(2))
    mapping.join(60)
    assert not mapping.is_alive()
    assert [slot.age for slot in slots.of[0]] == [(1, 1), (1, 2)]


def test_memory_that_is_not_there_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would give it, and kill a process for it as soon as it is used."""
    slots = StagingSlots(1)
    mine = stage(slots, monkeypatch)
    monkeypatch.setattr("airflow_elastic.runtime.tiers.shared_memory.free_bytes", lambda: 10_000_000)
    plan = lay_out({"a": torch.ones(5_000_000)}, RankPosition(0, 1, 1), own="random.0")
    with pytest.raises(InvalidInput, match=r"only 0\.01 GB are free.*2 times 0\.02 GB.*fewer ranks"):
        mine.put(plan, note(1))
    mine.announce(plan)
    with pytest.raises(OSError, match="are free"):
        slots.of[0][0].provide()


def test_memory_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {"poke": "/proc/1/fd/none", "slots": [["/proc/none/fd/3"] * 2]}
    monkeypatch.setenv(ENVIRONMENT, json.dumps(paths))
    with pytest.raises(InvalidInput, match=r"workers\.procs ranks on its machine"):
        StagingArea.found(0)
    with pytest.raises(InvalidInput, match="local rank 3"):
        StagingArea.found(3)


def test_outside_of_a_run_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    assert StagingArea.found(0) is None


def test_a_sharded_tensor_inside_an_object_is_refused(tmp_path: Path) -> None:
    """Kept as one value, it would be the first rank's part alone."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        state = {"other.mine": {"rest": deque([distribute_tensor(torch.ones(4), mesh, [Shard(0)])])}}
        with pytest.raises(InvalidInput, match=r"other\.mine\.rest holds a DTensor .* Keep it in dicts"):
            lay_out(state, RankPosition(0, 1, 1), own="random.0")
        state["other.mine"]["rest"] = deque([torch.ones(4)])
        assert [blob.key for blob in lay_out(state, RankPosition(0, 1, 1), own="random.0").kept.blobs] == [
            "other.mine.rest"
        ]
    finally:
        dist.destroy_process_group()
