"""A thread of each agent that writes what its ranks have staged to storage, while they train on."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.host.processes import readable
from airflow_elastic.adapters.host.shared_page import Page
from airflow_elastic.adapters.records import checkpoint_retention, checkpoints, checksums
from airflow_elastic.adapters.records.checkpoint_parts import CheckpointPart, Superseded, check_there, tell
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.records.job_files import attempt_of
from airflow_elastic.adapters.storage.store import at_once
from airflow_elastic.runtime.tiers import shared_memory
from airflow_elastic.runtime.tiers.shared_memory import IN_BETWEEN
from airflow_elastic.runtime.tiers.storage.checkpoint_files import file_keys, manifest_of, write_files
from airflow_elastic.runtime.tiers.storage.throttle import SendThrottle
from airflow_elastic.runtime.tiers.storage.uncommitted import UncommittedSaves, WrittenSave
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import ElasticError, StoreError, StoreFull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from airflow_elastic.runtime.tiers.shared_memory import Note, StagingSlot
    from airflow_elastic.runtime.tiers.worker import TierWorker

log = logging.getLogger(__name__)

#: Of the thread that writes while training goes on: where every processor trains, it has about 3 % of one. Who flushes
#: has nobody to wait for.
NICE = 15

_LOCKED_SECONDS = 5.0


class StorageWriter:
    """Writes the newest state that all ranks of a worker have staged.

    Args:
        node: the worker.
        news: called when ranks have staged something.
    """

    def __init__(self, node: TierWorker, news: Callable[[], None] = lambda: None) -> None:
        self._node, self._slots, self._news = node, node.slots, news
        self._throttling, self._unsettled = SendThrottle(node.pages), UncommittedSaves(node.store)
        # Generation and step of what was written last, and of what the thread has tried to write last.
        self._done: tuple[int, int] = (0, -1)
        self._tried: tuple[int, int] = (0, -1)
        self._told: set[tuple[int, int, str]] = set()  # generations and steps, and why they are not written
        self._best_looked_for = False
        self._for_lost: set[tuple[int, int]] = set()
        self._noted = 0  # the generation of which it is known what it began from
        self._too_slow = False  # to be done when workers are told to end; it is told once
        self._lock = threading.Lock()  # one at a time: the thread, or whoever flushes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="persister", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is staged and not written stays unwritten."""
        self._over.set()
        self._slots.poke()
        with self._throttling.lifted():
            self._thread.join(timeout=60.0)

    def flush(self) -> None:
        """Write what is staged, now; also what could not be written before, and what was meant for memory only.

        All of it, the older state first: another worker may not have come to the newer one. And what is kept for a
        worker that is lost.

        Raises:
            ElasticError: the newest could not be written.
        """
        trouble: ElasticError | None = None
        with self._throttling.lifted(), self._lock:
            for age in self._common(self._done):
                try:
                    self._insist(age)
                    trouble = None
                except ElasticError as error:
                    trouble = error
            self._write_lost()
        if trouble is not None:
            raise trouble

    def write_new(self) -> None:
        """Write what has been staged since this was tried last. Raises as `flush`."""
        with self._lock:
            self._once(reversed(self._common(max(self._done, self._tried))))

    def provide(self) -> None:
        """Have the memory ready that ranks have said they will save into."""
        for mine in self._slots.of:
            for slot in mine:
                try:
                    with self._lock:  # a slot that is held for this would not be found by who flushes
                        slot.provide()
                except OSError as error:
                    log.warning("memory to save into is short (%s): the next save will fail", error)
                    return

    def _work(self) -> None:
        # Training comes first: this gets what processors it leaves. Threads that are started from here inherit it.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while not self._over.is_set():
            readable(self._slots.news)
            os.read(self._slots.news, 4096)
            if self._over.is_set():
                return
            try:
                self._news()
                self.provide()
                self.write_new()
            except ElasticError as error:
                log.warning("the checkpoint could not be written: %s", error)
            except Exception:
                log.exception("the checkpoint could not be written")

    def _insist(self, age: tuple[int, int]) -> None:
        """Write it, also where somebody looks into one of its slots just now."""
        give_up = time.monotonic() + _LOCKED_SECONDS
        while not self._once([age], memory_too=True) and age in self._common(self._done):
            if time.monotonic() > give_up:
                raise StoreError(
                    f"what is in memory of step {age[1]} is locked by somebody, and is not written"
                )
            time.sleep(0.02)

    def _once(self, ages: Iterable[tuple[int, int]], *, memory_too: bool = False) -> bool:
        """Write the first of these states that is there, and to be written; returns whether there was one."""
        for age in ages:
            held = shared_memory.held(self._slots.of, age)
            if held and (memory_too or all(note.reason not in IN_BETWEEN for _, note in held)):
                break
            for slot, _ in held:
                slot.release()
        else:
            return False
        newest, committed, began = held[0][1], False, time.monotonic()
        self._tried = (newest.generation, newest.step)
        try:
            committed = self._write(held, self._node.index)
            self._done = self._tried
            self._told.clear()
        except (ElasticError, OSError) as error:
            what = (*self._tried, str(error))
            if what not in self._told and self._node.tell_unsaved(newest.step, str(error)):
                self._told.add(what)  # it may be tried many times
            if isinstance(error, OSError):  # the slot's memory, e.g., cannot be mapped
                raise StoreError(f"step {newest.step} cannot be written: {error}") from error
            raise
        finally:
            for slot, _ in held:
                slot.release()
            # Also where it failed: the next save is to be tried.
            if newest.generation == self._node.generation:  # others have steps of their own
                self._tell_ranks(newest.step, time.monotonic() - began, written=self._done == self._tried)
        self._check_grace(shared_memory.bytes_of(held), time.monotonic() - began)
        if committed:  # not before the ranks may save again: removing a large file takes its time
            try:
                unnoted = self._note_verified(newest.generation)
                self._prune(unnoted)
            except CheckpointDamaged as error:
                log.warning("%s", error)
                self._node.tell_unpruned(newest.step, str(error))
            except ElasticError as error:
                log.warning("old checkpoints could not be removed, they only take space: %s", error)
        return True

    def _prune(self, also: list[int]) -> None:
        """Remove what is not to stay; told once where that may be the best, as nobody has said which one is."""
        store, policy = self._node.store, self._node.record.spec.checkpoint
        if checkpoint_retention.prune(store, policy, also) and not self._best_looked_for:
            self._best_looked_for = True
            if why := checkpoint_retention.without_best(store, policy):
                log.warning("%s", why)

    def _check_grace(self, size: int, seconds: float) -> None:
        """Tell where a state takes longer to write than workers get that are told to end."""
        grace, best = self._node.record.spec.health.grace_seconds, self._throttling.at_best(size, seconds)
        if best > grace and not self._too_slow:
            self._too_slow = True
            log.warning(
                "to write a state takes %.3g s, and workers that are told to end have health.grace_seconds for it, "
                "which is %.3g s: what they save then may not be there when they are killed. Set it to more",
                *(best, grace),
            )

    def _note_verified(self, generation: int) -> list[int]:
        """Have it known what the ranks have read back: once, as somebody else may come to know of a newer one.

        Returns:
            What there was no room to note; it has to stay nevertheless.
        """
        step = self._node.verified()
        if self._noted != generation:
            try:
                checkpoint_retention.note_verified(self._node.store, step)
            except StoreFull as error:
                log.warning("that checkpoint %s was read whole cannot be noted: %s", step, error)
                return [] if step is None else [step]
            self._noted = generation
        return []

    def _common(self, after: tuple[int, int]) -> list[tuple[int, int]]:
        """Generation and step of the states that all ranks have staged, the older one first."""
        return [age for age in shared_memory.common(self._slots.of) if age > after]

    def _write_lost(self) -> None:
        """Write what is kept for a worker that is lost, as it would have."""
        keeper = self._node.keeper
        if keeper is None or (lost := keeper.lost) is None:
            return
        for age in shared_memory.common(keeper.slots):
            if age in self._for_lost or age[0] != keeper.generation:
                continue
            held = shared_memory.held(keeper.slots, age)
            try:
                if not held or age[1] in checkpoints.steps(self._node.store):
                    continue
                if keeper.checksums(age) != tuple(
                    checksums.of(slot.data(note.kept_bytes)) for slot, note in held
                ):
                    raise StoreError("what is kept is not what came")
                log.info("node-%d is lost: its part of step %d is written from here", lost, age[1])
                self._write(held, lost)
                self._for_lost.add(age)
            except (ElasticError, OSError) as error:
                log.warning("the part of node-%d of step %d could not be written: %s", lost, age[1], error)
            finally:
                for slot, _ in held:
                    slot.release()

    def _write(self, held: Sequence[tuple[StagingSlot, Note]], worker: int) -> bool:
        """Write the part of a worker, and tell of it; returns whether that has made the checkpoint exist."""
        node, record = self._node, self._node.record
        note = held[0][1]
        members = node.files.members(note.generation)
        if members is None:
            return False
        attempt = attempt_of(record, members)
        data = layout.checkpoint_data(note.step, attempt, note.generation)
        size, staged_at = shared_memory.bytes_of(held), held[0][0].finished_at / 1e9
        is_own = worker == node.index  # a lost one's is awaited
        pace, by = (self._throttling.pace, None) if is_own else (at_once, node.index)
        manifest = replace(manifest_of(note, attempt, data, ()), run=node.run)
        part = CheckpointPart(members.nodes.index(worker), len(members.nodes), manifest)
        keys = tuple(key for _, one in held for key in file_keys(data, one.rank, by))
        written = WrittenSave(note.step, data, part.key, keys)
        try:
            check_there(node.store, node.run)  # its files have the same names
            if self._unsettled.counts(written):
                return True
            self._unsettled.begin(written)
            try:
                with self._throttling.sending(size, staged_at) if is_own else contextlib.nullcontext():
                    files, _ = write_files(node.store, held, data, attempt, self._move, pace, by)
            except ElasticError:
                self._unsettled.failed(written)
                raise
            self._unsettled.tell(written)
            return tell(node.store, replace(part, manifest=replace(manifest, files=tuple(files))))
        except Superseded as error:
            log.warning("%s", error)
            if attempt == node.attempt:
                node.stop()
            return False

    def _move(self) -> None:
        """A file is written: whoever waits for the rest of them does not stand still."""
        for path in self._node.pages():
            one = Page(path)
            one.words[shared_page.MOVED_AT] = max(one.words[shared_page.MOVED_AT], time.time())
            one.close()

    def _tell_ranks(self, step: int, seconds: float, *, written: bool) -> None:
        newest = {shared_page.WRITTEN: float(step)} if written else {}
        self._node.tell_ranks({shared_page.WRITING: seconds, **newest, shared_page.KEPT: float(step)})
