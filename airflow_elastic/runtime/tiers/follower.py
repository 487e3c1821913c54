"""Handing on what a worker's ranks have staged, while they train on."""

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

#: Ranks' news are heard by the thread that writes to storage, which does not listen meanwhile.
_LOOK_SECONDS = 0.5


class Follower(ABC):
    """A thread of the agent that takes the newest state somewhere, whenever there is a newer one.

    Args:
        node: the worker.
        name: of the thread.
        stop_seconds: how long `stop` waits for what is on its way.
    """

    def __init__(self, node: TierWorker, name: str, stop_seconds: float) -> None:
        self._node, self._slots = node, node.slots.opened_again()
        self._tried: tuple[int, int, str] = (0, -1, "")  # generation, step, and why it was saved
        self._passed: set[tuple[int, int]] = set()  # generations and steps of those that are not for here
        self._refused = False  # and told
        self._stop_seconds = stop_seconds
        self._news, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def news(self) -> None:
        """Ranks have staged something."""
        self._news.set()

    def end(self) -> None:
        """Begin nothing more."""
        self._over.set()
        self._news.set()

    def stop(self) -> bool:
        """End; returns whether nothing is on its way any more."""
        self.end()
        if self._thread.is_alive():
            self._thread.join(self._stop_seconds)
        return not self._thread.is_alive()

    @abstractmethod
    def finish(self, flushed: Callable[[], bool], *, done: bool) -> None:
        """End, with the worker.

        Args:
            flushed: has what is staged written to storage; answers whether all of it is.
            done: whether training is complete, or goes on without this worker.
        """

    @abstractmethod
    def _take(self, held: Sequence[tuple[StagingSlot, Note]]) -> None:
        """Take a state there; the slots of all ranks are held for reading."""

    def _wants(self, reason: str) -> bool:
        """Whether a state that was saved for this reason is for here."""
        return True

    def _in_turn(self, ages: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int]]:
        """Which of these states comes first; they are the older ones first."""
        return reversed(ages)

    def _work(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while not self._over.is_set():
            heard = self._news.wait(_LOOK_SECONDS)
            self._news.clear()
            try:
                self._look(heard=heard)
            except Exception:
                log.exception("what is saved could not be taken elsewhere")

    def _look(self, *, heard: bool) -> None:
        """Take what all ranks have staged and is newer than what was tried before.

        Whether a step was saved once more stands in notes, which take their time to read: only when there is news.
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
                    continue  # the ranks go over to the next one, or save this one once more
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
        """Tell why states do not come there; once, until they do."""
        if not self._refused:
            self._refused = True
            log.warning("step %d: %s", step, reason)
            self._node.tell_unsaved(step, reason)
