"""Handing on what a worker's ranks have staged, while they train on."""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from airflow_elastic.runtime import slots
from airflow_elastic.runtime.persister import NICE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_elastic.runtime.node import Node
    from airflow_elastic.runtime.slots import Note, Slot

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

    def __init__(self, node: Node, name: str, stop_seconds: float) -> None:
        self._node, self._slots = node, node.slots.opened_again()
        self._tried: tuple[int, int, str] = (0, -1, "")  # generation, step, and why it was saved
        self._passed: tuple[int, int] = (0, -1)  # generation and step of the newest that is not for here
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

    def stop(self) -> bool:
        """End; returns whether nothing is on its way any more."""
        self._over.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(self._stop_seconds)
        return not self._thread.is_alive()

    @abstractmethod
    def _take(self, held: Sequence[tuple[Slot, Note]]) -> None:
        """Take a state there; the slots of all ranks are held for reading."""

    def _wants(self, note: Note) -> bool:
        """Whether a state is for here."""
        return True

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
        """Take the newest state that all ranks have staged, unless that was tried already.

        Whether a step was saved once more stands in notes, which take their time to read: only when there is news.
        """
        for age in reversed(slots.common(self._slots)):
            if age < self._tried[:2] or age[0] != self._node.generation or self._over.is_set():
                return
            if not heard and age == self._tried[:2]:
                return
            if not heard and age == self._passed:
                continue
            held = slots.held(self._slots, age)
            try:
                if not held:  # the ranks have gone over to the next one
                    continue
                if not self._wants(held[0][1]):
                    self._passed = age
                    continue
                this = (*age, held[0][1].reason)
                if this != self._tried:  # a step can be saved once more
                    self._tried = this
                    self._take(held)
                return
            finally:
                for slot, _ in held:
                    slot.release()

    def _refuse(self, step: int, reason: str) -> None:
        """Tell why states do not come there; once, until they do."""
        if not self._refused:
            self._refused = True
            log.warning("step %d: %s", step, reason)
            self._node.tell_unsaved(step, reason)
