"""A thread that copies what a worker's ranks have staged to one of the tiers, while they train on."""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from airflow_elastic.runtime.tiers import shared_memory
from airflow_elastic.runtime.tiers.storage.writer import NICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from airflow_elastic.runtime.tiers.shared_memory import Note, StagingSlot
    from airflow_elastic.runtime.tiers.worker import TierWorker

log = logging.getLogger(__name__)

#: Ranks notify only the thread that writes to storage, which does not pass it on while it writes. So look, too.
_LOOK_SECONDS = 0.5


class Follower(ABC):
    """A thread of the agent that copies each new state to a tier.

    Args:
        node: the worker.
        name: name of the thread.
        stop_seconds: how long `stop` waits for a copy that has begun.
    """

    def __init__(self, node: TierWorker, name: str, stop_seconds: float) -> None:
        self._node, self._slots = node, node.slots.opened_again()
        self._tried: tuple[int, int, str] = (0, -1, "")  # generation, step, and why it was saved
        self._passed: set[tuple[int, int]] = set()  # generations and steps that this tier does not take
        self._refused = False  # and reported
        self._stop_seconds = stop_seconds
        self._news, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def news(self) -> None:
        """Wake the thread: ranks have staged something."""
        self._news.set()

    def end(self) -> None:
        """Do not begin another copy."""
        self._over.set()
        self._news.set()

    def stop(self) -> bool:
        """End the thread. Returns False if a copy is still under way after `stop_seconds`."""
        self.end()
        if self._thread.is_alive():
            self._thread.join(self._stop_seconds)
        return not self._thread.is_alive()

    @abstractmethod
    def finish(self, flushed: Callable[[], bool], *, done: bool) -> None:
        """End, because the worker ends.

        Args:
            flushed: writes what is staged to storage. Returns whether storage has every staged state now.
            done: whether training is complete, or goes on without this worker.
        """

    @abstractmethod
    def _take(self, held: Sequence[tuple[StagingSlot, Note]]) -> None:
        """Copy a state to the tier. The slots of all ranks are locked for reading."""

    def _wants(self, reason: str) -> bool:
        """Whether this tier takes a state that was saved for this reason."""
        return True

    def _in_turn(self, ages: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int]]:
        """The order in which to copy these states, which come in the order of their age, oldest first."""
        return reversed(ages)

    def _work(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while not self._over.is_set():
            heard = self._news.wait(_LOOK_SECONDS)
            self._news.clear()
            try:
                self._look(heard=heard)
            except Exception:
                log.exception("the %s thread could not copy a saved state", self._thread.name)

    def _look(self, *, heard: bool) -> None:
        """Copy the states that all ranks have staged, if they are newer than the last one that was tried.

        A step may be saved twice, for another reason. Only its notes show that. They take time to read, so they are
        read only when there is news.
        """
        there = shared_memory.common(self._slots)
        self._passed.intersection_update(there)
        seen = {self._tried[:2], *self._passed}
        for age in self._in_turn(there):
            if self._over.is_set():
                return
            is_over = age < self._tried[:2] or age[0] != self._node.generation
            if is_over or (not heard and age in seen):
                continue
            held = shared_memory.held(self._slots, age)
            try:
                if len({note.reason for _, note in held}) != 1:
                    continue  # some ranks are saving already: the next state, or this one once more
                reason = held[0][1].reason
                if not self._wants(reason):
                    self._passed.add(age)
                elif (*age, reason) != self._tried:
                    self._tried = (*age, reason)
                    self._take(held)
            finally:
                for slot, _ in held:
                    slot.release()

    def _refuse(self, step: int, reason: str) -> None:
        """Report why the tier does not get states. Once, until it gets one again."""
        if not self._refused:
            self._refused = True
            log.warning("step %d: %s", step, reason)
            self._node.tell_unsaved(step, reason)
