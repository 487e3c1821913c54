"""The checkpoints that exist when ranks begin. They are listed once, so a script gets the one that it was shown."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from functools import partial

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints, journal
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.records.mailbox import CheckpointTrouble, Mailbox
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.core.checkpoints.save_interval import EXPECTED_SECONDS, seconds_between_failures
from airflow_elastic.core.machine import replay
from airflow_elastic.runtime.checkpoint.read.load import ProgressCallback
from airflow_elastic.runtime.checkpoint.read.reader import CheckpointReader, index_files
from airflow_elastic.runtime.checkpoint.save.save import VERSIONS
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.errors import ElasticError, InvalidInput, StoreError

log = logging.getLogger(__name__)

#: A manifest, and what its index files hold, by key.
Opened = tuple[Manifest, dict[str, bytes]]


class AvailableCheckpoints:
    """The checkpoints of a run when ranks begin. No process writes new ones before that.

    Args:
        store: where the run is stored.
        ranks: this rank among the others.
        attempt: number of the attempt.
        worker: this rank's worker.
        told: called with the bytes that are read so far, and all bytes.

    Attributes:
        trouble: the error of the last `look`, if any.
    """

    def __init__(
        self, store: Store, ranks: Collectives, *, attempt: int, worker: str, told: ProgressCallback
    ) -> None:
        self._store, self._ranks, self._attempt, self._worker, self._told = (
            store,
            ranks,
            attempt,
            worker,
            told,
        )
        self._looked = False
        self._steps: list[int] = []
        self._opened: dict[int, Opened] = {}
        self.trouble: ElasticError | None = None

    def look(self) -> None:
        """List the checkpoints. All ranks call this together. Errors are raised by `steps` and `newest`."""
        self._looked = True
        self._steps, newest, self.trouble = self._ranks.from_first(self._look)
        self._opened = {} if newest is None else {newest[0].step: newest}

    def _look(self) -> tuple[list[int], Opened | None, ElasticError | None]:
        """On rank 0: the steps of all checkpoints, and the newest one whose manifest and indexes can be read."""
        try:
            steps = checkpoints.steps(self._store)
            for step in reversed(steps):
                with contextlib.suppress(CheckpointDamaged):  # reported when it is restored
                    return steps, self._open(step), None
            return steps, None, None
        except ElasticError as error:
            return [], None, error

    @property
    def steps(self) -> list[int]:
        """Of all committed checkpoints, oldest first. All ranks call this together. Raises the error of `look`."""
        if not self._looked:
            self.look()
        if self.trouble is not None:
            raise self.trouble
        return self._steps

    @property
    def newest(self) -> Manifest | None:
        """Of the newest checkpoint that can be opened. All ranks call this together. Raises the error of `look`."""
        opened = [self._opened[step][0] for step in self.steps if step in self._opened]
        return opened[-1] if opened else None

    def forget(self) -> None:
        """Drop the list; the next question makes a new one."""
        self._looked, self._opened = False, {}

    def open(self, step: int) -> Opened:
        """Read a manifest and its indexes. All ranks call this together, and all raise the same.

        Raises:
            CheckpointDamaged: a file is missing or damaged.
            InvalidInput: the checkpoint is another run's.
        """
        if step not in self._opened:
            self._opened = {step: self._ranks.from_first(partial(self._open, step))}
        return self._opened[step]

    def _open(self, step: int) -> Opened:
        manifest = checkpoints.read(self._store, step)
        then = (
            "To go on from it, copy `checkpoints/` into the folder of a new run before that run begins. To go on from "
            f"this run's own checkpoints, remove {layout.manifest(step)}. Nothing was changed"
        )
        check_run(self._store, manifest, then)
        saved_with = manifest.versions.get("torch")
        if saved_with not in (None, VERSIONS["torch"]):
            log.warning(
                "checkpoint %d was saved with torch %s, but this is torch %s. Results may differ in some bits, and the "
                "rest of the epoch may be shuffled in another order",
                *(step, saved_with, VERSIONS["torch"]),
            )
        return manifest, read_indexes(self._store, manifest)

    def seconds_between_failures(self) -> float:
        """The estimated time between failures of the run, from its journal. All ranks call this together."""

        def read() -> float:
            try:
                state = replay(Journal(self._store).read())
            except ElasticError as error:
                log.warning("how often the run fails is not known: %s", error)
                return EXPECTED_SECONDS
            return seconds_between_failures(state, time.time()) if state else EXPECTED_SECONDS

        return self._ranks.from_first(read)

    def set_aside(self, damaged: Mapping[int, str], newest: int) -> None:
        """Move damaged checkpoints away, and report them to the controller. All ranks call this together."""
        self._ranks.from_first(partial(self._set_aside, damaged, newest))

    def _set_aside(self, damaged: Mapping[int, str], newest: int) -> None:
        for step, reason in damaged.items():
            try:
                if not self._is_damaged(step, reason):
                    log.warning("checkpoint %d is whole in storage, and stays: %s", step, reason)
                    self.tell_refused(step, f"{reason}. In storage it is whole, and stays", newest)
                    continue
                trouble = CheckpointTrouble(self._attempt, step, reason, newest)
                checkpoint_retention.set_aside(self._store, trouble, by="rank 0")
            except StoreError as error:
                log.warning("checkpoint %d could not be set aside: %s", step, error)

    def _is_damaged(self, step: int, reason: str) -> bool:
        """Whether the checkpoint is damaged in storage. If not, the disk or memory of one machine may be bad.

        All other ranks wait for this, so it reads only the files that `reason` names, if there are any.
        """
        try:
            manifest = checkpoints.read(self._store, step)
            files = list(enumerate(manifest.files))
            named = [(at, file) for at, file in files if file.key in reason] or files
            done, whole = 0, sum(file.size for _, file in named)
            for at, file in named:
                if checkpoints.problems(self._store, manifest, only=at.__eq__):
                    return True
                done += file.size
                self._told(done, whole)
            CheckpointReader(manifest, read_indexes(self._store, manifest)).check_values(self._store)
            return False
        except (checkpoints.OtherVersion, InvalidInput):
            return False
        except CheckpointDamaged:
            return True

    def tell_refused(self, step: int, reason: str, newest: int | None = None) -> None:
        """Report a damaged copy to the controller: the machine that holds it may be bad."""
        trouble = CheckpointTrouble(self._attempt, step, reason, newest)
        try:
            Mailbox(self._store).post("refused", by=self._worker, checkpoint=trouble)
        except StoreError as error:
            log.warning(
                "a copy of checkpoint %d was not used, but this could not be reported: %s", step, error
            )


def check_run(store: Store, manifest: Manifest, then: str) -> None:
    """Raise InvalidInput if a checkpoint is not of the run at `store`; `then` is the advice in the message."""
    if not journal.is_ours(store)(manifest):
        raise InvalidInput(
            f"checkpoint {manifest.step} in {store.uri} is of another run ({manifest.run}; this one is "
            f"{journal.identity(store)}), copied there after this one had begun. {then}"
        )


def read_indexes(store: Store, manifest: Manifest) -> dict[str, bytes]:
    """The contents of the index files of a checkpoint, by key; empty for a missing file."""
    keys = [file.key for file in index_files(manifest)]
    return {key: data or b"" for key, data in zip(keys, checkpoints.at_once(store.get, keys), strict=True)}
