"""A thread of each agent that writes the staged states of its ranks to storage while they train on."""

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
from airflow_elastic.spec.training.early_stop import retention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from airflow_elastic.runtime.tiers.shared_memory import Note, StagingSlot
    from airflow_elastic.runtime.tiers.worker import TierWorker

log = logging.getLogger(__name__)

#: Of the thread that writes while training goes on. If every processor trains, it gets about 3 % of one. A flush does
#: not run in this thread, and keeps its priority.
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
        self._throttling, self._uncommitted = SendThrottle(node.pages), UncommittedSaves(node.store)
        # Generation and step: of the last state that was written, and of the last that the thread tried to write.
        self._done: tuple[int, int] = (0, -1)
        self._tried: tuple[int, int] = (0, -1)
        self._reported: set[tuple[int, int, str]] = set()  # generation, step and reason of reported failures
        self._best_looked_for = False
        self._for_lost: set[tuple[int, int]] = set()
        self._noted = 0  # the last generation whose first checkpoint was recorded as verified
        self._too_slow = False  # a write takes longer than the grace period, and this was reported
        self._lock = threading.Lock()  # one write at a time: by the thread, or by a flush
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="persister", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Staged states that are not written stay unwritten."""
        self._over.set()
        self._slots.poke()
        with self._throttling.lifted():
            self._thread.join(timeout=60.0)

    def flush(self) -> None:
        """Write every staged state now, also those that failed before or were meant for memory only.

        The oldest first: another worker may not have the newest one. Then write the states that are kept for a lost
        worker.

        Raises:
            ElasticError: the newest state could not be written.
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
        """Write the newest state that was staged since the last try. Raises as `flush`."""
        with self._lock:
            self._once(reversed(self._common(max(self._done, self._tried))))

    def provide(self) -> None:
        """Allocate the memory that ranks have asked for, before they save into it."""
        for mine in self._slots.of:
            for slot in mine:
                try:
                    with self._lock:  # a flush would miss a slot that is locked for this
                        slot.provide()
                except OSError as error:
                    log.warning("memory to save into is short (%s): the next save will fail", error)
                    return

    def _work(self) -> None:
        # Training comes first: this thread gets the processor time that is left. The threads that it starts inherit it.
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
        """Write a state. If one of its slots is locked just now, try again for a while."""
        give_up = time.monotonic() + _LOCKED_SECONDS
        while not self._once([age], memory_too=True) and age in self._common(self._done):
            if time.monotonic() > give_up:
                raise StoreError(
                    f"the state of step {age[1]} in memory stayed locked for {_LOCKED_SECONDS:.0f} s: it is not written"
                )
            time.sleep(0.02)

    def _once(self, ages: Iterable[tuple[int, int]], *, memory_too: bool = False) -> bool:
        """Write the first of these states that is complete and meant for storage. Returns whether there was one.

        Args:
            ages: generation and step of each.
            memory_too: whether to write states that were meant for memory or disk only, too.
        """
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
            self._reported.clear()
        except (ElasticError, OSError) as error:
            what = (*self._tried, str(error))
            if what not in self._reported and self._node.tell_unsaved(newest.step, str(error)):
                self._reported.add(what)  # report it once, although it may be tried many times
            if isinstance(error, OSError):  # e.g. the slot's memory cannot be mapped
                raise StoreError(f"step {newest.step} cannot be written: {error}") from error
            raise
        finally:
            for slot, _ in held:
                slot.release()
            # Also after a failure: ranks wait for this before they try the next save.
            if newest.generation == self._node.generation:  # another generation counts its own steps
                self._tell_ranks(newest.step, time.monotonic() - began, written=self._done == self._tried)
        self._check_grace(shared_memory.bytes_of(held), time.monotonic() - began)
        if committed:  # after the ranks may save again, because removing a large file takes time
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
        """Remove the checkpoints that the policy does not keep.

        Warns once if no checkpoint has the metric of `checkpoint.keep_best`: the best one may then be removed.
        """
        store, spec = self._node.store, self._node.record.spec
        policy = retention(spec.checkpoint, spec.early_stop)
        if checkpoint_retention.prune(store, policy, also) and not self._best_looked_for:
            self._best_looked_for = True
            if why := checkpoint_retention.without_best(store, policy):
                log.warning("%s", why)

    def _check_grace(self, size: int, seconds: float) -> None:
        """Warn if writing a state takes longer than a worker has between the order to end and SIGKILL."""
        grace, best = self._node.record.spec.health.grace_seconds, self._throttling.at_best(size, seconds)
        if best > grace and not self._too_slow:
            self._too_slow = True
            log.warning(
                "writing a state takes %.3g s, but a worker that must end has only health.grace_seconds, %.3g s, for "
                "it. It may be killed before its last save is written: set health.grace_seconds higher",
                *(best, grace),
            )

    def _note_verified(self, generation: int) -> list[int]:
        """Record the checkpoint that the ranks have read back whole. Once, because a later run may record a newer one.

        Returns:
            The step that could not be recorded because storage is full. It must not be removed.
        """
        step, at = self._node.verified() or (None, None)
        if self._noted != generation:
            try:
                by = f"ranks of attempt {self._node.attempt}"
                checkpoint_retention.note_verified(self._node.store, step, at=at, by=by)
            except StoreFull as error:
                log.warning("checkpoint %s was read whole, but this cannot be recorded: %s", step, error)
                return [] if step is None else [step]
            self._noted = generation
        return []

    def _common(self, after: tuple[int, int]) -> list[tuple[int, int]]:
        """Generation and step of the states after this one that all ranks have staged, oldest first."""
        return [age for age in shared_memory.common(self._slots.of) if age > after]

    def _write_lost(self) -> None:
        """Write the states that are kept for a lost worker, in its place."""
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
                    raise StoreError("the copy in memory has changed since it was received")
                log.info("node-%d is lost: its part of step %d is written from here", lost, age[1])
                self._write(held, lost)
                self._for_lost.add(age)
            except (ElasticError, OSError) as error:
                log.warning("the part of node-%d of step %d could not be written: %s", lost, age[1], error)
            finally:
                for slot, _ in held:
                    slot.release()

    def _write(self, held: Sequence[tuple[StagingSlot, Note]], worker: int) -> bool:
        """Write a worker's part of a checkpoint, and its record. Returns whether that has committed the checkpoint."""
        node, record = self._node, self._node.record
        note = held[0][1]
        members = node.files.members(note.generation)
        if members is None:
            return False
        attempt = attempt_of(record, members)
        data = layout.checkpoint_data(note.step, attempt, note.generation)
        size, staged_at = shared_memory.bytes_of(held), held[0][0].finished_at / 1e9
        is_own = worker == node.index  # a lost worker's part is urgent: no speed limit
        pace, by = (self._throttling.pace, None) if is_own else (at_once, node.index)
        manifest = replace(manifest_of(note, attempt, data, ()), run=node.run)
        part = CheckpointPart(members.nodes.index(worker), len(members.nodes), manifest)
        keys = tuple(key for _, one in held for key in file_keys(data, one.rank, by))
        written = WrittenSave(note.step, data, part.key, keys)
        try:
            check_there(node.store, node.run)  # another run's files here would have the same names
            if self._uncommitted.counts(written):
                return True
            self._uncommitted.begin(written)
            try:
                with self._throttling.sending(size, staged_at) if is_own else contextlib.nullcontext():
                    files, _ = write_files(node.store, held, data, attempt, self._move, pace, by)
            except ElasticError:
                self._uncommitted.failed(written)
                raise
            self._uncommitted.announce(written)
            return tell(node.store, replace(part, manifest=replace(manifest, files=tuple(files))))
        except Superseded as error:
            log.warning("%s", error)
            if attempt == node.attempt:
                node.stop()
            return False

    def _move(self) -> None:
        """Note progress in the ranks' pages: a rank that waits for a write does not hang."""
        for path in self._node.pages():
            one = Page(path)
            one.words[shared_page.MOVED_AT] = max(one.words[shared_page.MOVED_AT], time.time())
            one.close()

    def _tell_ranks(self, step: int, seconds: float, *, written: bool) -> None:
        newest = {shared_page.WRITTEN: float(step)} if written else {}
        self._node.tell_ranks({shared_page.WRITING: seconds, **newest, shared_page.KEPT: float(step)})
