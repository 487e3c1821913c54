"""A rank's side of the slots: choose a slot, copy a state into it, and notify the agent."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_elastic.runtime.checkpoint.save.overlapped_copy import OverlappedCopy
from airflow_elastic.runtime.checkpoint.tensors.host_numbers import HostNumbers
from airflow_elastic.runtime.checkpoint.tensors.pinned_memory import may_pin_beside_training, pin
from airflow_elastic.runtime.staying.agent_link import LeaveGeneration
from airflow_elastic.runtime.tiers.shared_memory import (
    COUNT,
    ENVIRONMENT,
    HEADER_BYTES,
    KEEPS,
    Memory,
    StagingSlot,
)
from airflow_elastic.spec.errors import InvalidInput

if TYPE_CHECKING:
    import torch

    from airflow_elastic.runtime.checkpoint.save.layout import Layout, Places
    from airflow_elastic.runtime.tiers.shared_memory import Memory, Note
    from airflow_elastic.spec.checkpoints.index import Index

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class ProtectedStates:
    """States that a copy must not overwrite, by generation and step.

    Attributes:
        kept: must never be overwritten.
        rather: are overwritten only if no other slot is free.
    """

    kept: frozenset[tuple[int, int]] = frozenset()
    rather: frozenset[tuple[int, int]] = frozenset()


#: Returns the states that are protected at that moment.
Spare = Callable[[], ProtectedStates]

#: A context for the time in which training waits.
Waiting = Callable[[], AbstractContextManager[None]]

_NO_NUMBERS = HostNumbers({})

#: How long to wait for the slot that holds the same step, to avoid two copies of it.
_SAME_SECONDS = 1.0


class StagingArea:
    """The slots of one rank.

    Args:
        slots: the slots of each rank of its worker.
        local_rank: its number on the worker.
        poke: a file descriptor; a byte written to it notifies the agent.
        keeps: the memory that its agent has for a neighbour's states; None without buddies.
    """

    def __init__(
        self, slots: list[list[StagingSlot]], local_rank: int, poke: int, keeps: int | None = None
    ) -> None:
        self.keeps = keeps
        self._everybodys, self._slots, self._poke = slots, slots[local_rank], poke
        self.procs = len(slots)
        #: Whether collectives were aborted. Then what a GPU computes from them is not valid.
        self.is_aborted: Callable[[], bool] = lambda: False

    @classmethod
    def found(cls, local_rank: int, former: StagingArea | None = None) -> StagingArea | None:
        """The slots that the environment names; None if no agent of airflow-elastic has started this process.

        Args:
            local_rank: of this rank.
            former: those of the generation before in this process, if any: they stay mapped and pinned.

        Raises:
            InvalidInput: they cannot be opened.
        """
        if ENVIRONMENT not in os.environ:
            return None
        if former is not None:
            former.keeps = _keeps()
            return former
        paths = json.loads(os.environ[ENVIRONMENT])
        try:
            return cls._opened(paths, local_rank)
        except (OSError, IndexError) as error:
            raise InvalidInput(
                f"local rank {local_rank} cannot open the memory of this worker's agent, which has slots for "
                f"{len(paths['slots'])} ranks ({error}). Start workers.procs ranks on its machine, as its user"
            ) from error

    @classmethod
    def _opened(cls, paths: dict[str, Any], local_rank: int) -> StagingArea:
        slots = [[StagingSlot.open(path) for path in each] for each in paths["slots"]]
        poke = os.open(paths["poke"], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return cls(slots, local_rank, poke, _keeps())

    def memory(self, generation: int, step: int, confirmed: Callable[[Memory], Memory]) -> Memory:
        """The entries of a checkpoint that this worker's agent still has in memory.

        Args:
            generation: of the ranks that saved it.
            step: of the checkpoint.
            confirmed: selects the entries that match the checkpoint, of those in which ranks may differ.
        """
        memory: Memory = {}
        perhaps: Memory = {}
        there = (slot for each in self._everybodys for slot in each if slot.age == (generation, step))
        for slot in sorted(there, key=lambda slot: slot.finished_at):
            note = slot.note()
            if note is not None:
                _note_down(note.kept, slot, memory)
                _note_down(note.rest, slot, memory)
                _note_down(note.perhaps, slot, perhaps)
        return memory | confirmed(perhaps)

    @property
    def have_bytes(self) -> int:
        """The memory that its slots have already."""
        return sum(os.fstat(slot.fileno()).st_size for slot in self._slots)

    def ask_for(self, size: int) -> None:
        """Have the agent provide memory for states of this size, in bytes."""
        for slot in self._slots:
            slot.want(size)
        self._tell_agent()

    def announce(self, layout: Layout) -> threading.Thread:
        """Have the agent provide memory for states like this one. The returned thread maps and pins it meanwhile."""
        self.ask_for(layout.total_bytes)
        work = (
            layout.places,
            layout.total_bytes,
            layout.gpus,
        )  # not the tensors: the script may let go of them
        mapping = threading.Thread(target=self._map_ahead, args=work, name="mapping", daemon=True)
        mapping.start()
        return mapping

    def _map_ahead(self, places: Places, size: int, gpus: Sequence[torch.device]) -> None:
        try:
            pins = bool(gpus) and may_pin_beside_training()
            for slot in self._slots:
                slot.map_ahead(size)
                if pins and slot.is_mapped(size):
                    pin(slot.data(size), gpus[0])
                if slot.is_mapped(size):
                    places.rooms(slot.data(size))
        except (OSError, RuntimeError) as error:
            log.info("memory for saves will be mapped at the first save: %s", error)

    def put(
        self,
        layout: Layout,
        note: Note,
        numbers: HostNumbers = _NO_NUMBERS,
        spare: Spare = ProtectedStates,
        waiting: Waiting = nullcontext,
    ) -> None:
        """Copy a state into a slot, and notify the agent.

        Args:
            layout: the state.
            note: describes the state, and is stored in the slot.
            numbers: the metrics for it.
            spare: returns the states that must not be overwritten.
            waiting: a context for the time in which no slot is free, because they are being read.

        Raises:
            InvalidInput: there is not enough memory; says how much it takes.
        """
        slot = self._free(note, spare, waiting)
        try:
            layout.copy_into(self._room(slot, layout))
            if layout.gpus and self.is_aborted():
                raise LeaveGeneration
            slot.finish(layout.total_bytes, replace(note, metrics=numbers.finite()))
        finally:
            slot.release()
        self._tell_agent()

    def put_beside(
        self,
        layout: Layout,
        note: Note,
        numbers: HostNumbers = _NO_NUMBERS,
        spare: Spare = ProtectedStates,
        waiting: Waiting = nullcontext,
    ) -> OverlappedCopy:
        """The same, but only values that may change before the optimizer's next step are copied at once.

        The rest is copied while training goes on.

        Raises:
            InvalidInput: there is not enough memory; says how much it takes.
        """
        slot, size = self._free(note, spare, waiting), layout.total_bytes

        def finish(whole: bool) -> None:
            try:
                if whole and not (layout.gpus and self.is_aborted()):
                    slot.finish(size, replace(note, metrics=numbers.finite()))
            finally:
                slot.release()
            self._tell_agent()

        try:
            memory = self._room(slot, layout)
            layout.copy_quick(memory)
            return OverlappedCopy(layout, memory, finish)
        except BaseException:
            slot.release()
            raise

    def _room(self, slot: StagingSlot, layout: Layout) -> memoryview:
        memory = _room(slot, layout.total_bytes, self.procs)
        if layout.gpus:
            pin(memory, layout.gpus[0])
        return memory

    def _tell_agent(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it has not read the earlier notifications yet
            os.write(self._poke, b".")

    def has_place(self, spare: Spare) -> bool:
        """Whether a state could be copied now, without waiting until a slot is no longer read."""
        spared = spare()
        for slot in self._slots:
            if slot.age not in spared.kept and slot.hold():
                slot.release()
                return True
        return False

    def _free(self, note: Note, spare: Spare, waiting: Waiting) -> StagingSlot:
        """A locked slot that is not being read: the one with the same step, to avoid two copies, or the older one."""
        began, slot = time.monotonic(), self._hold(note, spare, insist=True)
        if slot is None:
            with waiting():
                while slot is None:
                    time.sleep(_POLL_SECONDS)
                    slot = self._hold(note, spare, insist=time.monotonic() - began <= _SAME_SECONDS)
        return slot

    def _hold(self, note: Note, spare: Spare, *, insist: bool) -> StagingSlot | None:
        """Lock a slot. None if all are being read, or, with `insist`, the one with the same step is."""
        spared, mine = spare(), (note.generation, note.step)
        free = [slot for slot in self._slots if slot.age not in spared.kept]
        others = sorted(free, key=lambda slot: (slot.age in spared.rather, slot.age or (-1, -1)))
        same = [slot for slot in self._slots if slot.age == mine]
        return next((slot for slot in (same or others if insist else [*same, *others]) if slot.hold()), None)


def _keeps() -> int | None:
    keeps = os.environ.get(KEEPS)
    return None if keeps is None else int(keeps)


def _note_down(index: Index, slot: StagingSlot, memory: Memory) -> None:
    for piece in index.pieces:
        memory[piece.key, piece.offsets] = slot, HEADER_BYTES + piece.at
    for blob in index.blobs:
        memory[blob.key, ()] = slot, HEADER_BYTES + blob.at


def _room(slot: StagingSlot, size: int, procs: int) -> memoryview:
    try:
        return slot.room(size)
    except (OSError, MemoryError) as error:
        whole = size * COUNT * procs / 1e9
        raise InvalidInput(
            f"there is not enough memory for saves ({error}): this rank's state takes {COUNT} times {size / 1e9:.3g} "
            f"GB, all ranks of the worker about {whole:.3g} GB. Give workers more memory, or fewer ranks"
        ) from error
