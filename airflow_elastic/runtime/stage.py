"""A rank's side of the slots: which one it copies into, and telling the agent."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from airflow_elastic.runtime.slots import COUNT, ENVIRONMENT, Slot
from airflow_elastic.spec.errors import InvalidInput

if TYPE_CHECKING:
    from airflow_elastic.runtime.slots import Note
    from airflow_elastic.runtime.staging import Layout

_POLL_SECONDS = 0.005


class Stage:
    """The slots of one rank.

    Args:
        slots: its slots.
        procs: ranks of its worker.
        poke: a descriptor to write to when one is filled.
    """

    def __init__(self, slots: list[Slot], procs: int, poke: int) -> None:
        self._slots, self.procs, self._poke = slots, procs, poke

    @classmethod
    def found(cls, local_rank: int) -> Stage | None:
        """The slots that the environment names; None where no agent of ours has started this process.

        Raises:
            InvalidInput: they cannot be reached from here.
        """
        if ENVIRONMENT not in os.environ:
            return None
        paths = json.loads(os.environ[ENVIRONMENT])
        try:
            return cls._opened(paths, local_rank)
        except (OSError, IndexError) as error:
            raise InvalidInput(
                f"the memory of this worker's agent, into which its ranks save ({len(paths['slots'])} of them), cannot "
                f"be reached by local rank {local_rank} ({error}): start workers.procs ranks beside it, as its user"
            ) from error

    @classmethod
    def _opened(cls, paths: dict[str, Any], local_rank: int) -> Stage:
        mine = [Slot.open(path) for path in paths["slots"][local_rank]]
        return cls(
            mine, len(paths["slots"]), os.open(paths["poke"], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        )

    def announce(self, layout: Layout) -> None:
        """Have the agent provide memory for states like this one."""
        for slot in self._slots:
            slot.want(layout.total_bytes)
        self._tell_agent()

    def put(self, layout: Layout, note: Note) -> None:
        """Copy a state, and tell the agent.

        Raises:
            InvalidInput: there is not enough memory; says how much it takes.
        """
        slot = self._free()
        try:
            layout.copy_into(_room(slot, layout.total_bytes, self.procs))
            slot.finish(layout.total_bytes, note)
        finally:
            slot.release()
        self._tell_agent()

    def _tell_agent(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it has been told, and has not listened yet
            os.write(self._poke, b".")

    def _free(self) -> Slot:
        """The slot with the older state that nobody reads, held."""
        while True:
            for slot in sorted(self._slots, key=lambda slot: slot.age or (-1, -1)):
                if slot.hold():
                    return slot
            time.sleep(_POLL_SECONDS)


def _room(slot: Slot, size: int, procs: int) -> memoryview:
    try:
        return slot.room(size)
    except (OSError, MemoryError) as error:
        whole = size * COUNT * procs / 1e9
        raise InvalidInput(
            f"there is no memory to save into: this rank's state takes {COUNT} times {size / 1e9:.3g} GB, all ranks of "
            f"the worker about {whole:.3g} GB ({error}); give workers more memory, or fewer ranks"
        ) from error
