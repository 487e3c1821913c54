"""Files that an agent has written for saves that are not checkpoints, as far as it knows."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.runtime.tiers import shared_memory
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import ElasticError

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

#: How many of the newest states some worker may still hold, even if it is a save behind. Older ones stay incomplete.
_HELD = shared_memory.COUNT + 1


@dataclass(frozen=True, slots=True)
class WrittenSave:
    """A worker's files of a save, written or about to be.

    Attributes:
        step: step of the save.
        data: folder of the checkpoint that the save becomes.
        record: key of the record that names the files.
        files: keys of the files.
    """

    step: int
    data: str
    record: str
    files: tuple[str, ...]


class UncommittedSaves:
    """An agent's uncommitted saves. Each is forgotten when it is committed, or when no worker can complete it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._written: list[WrittenSave] = []
        self._held: list[str] = []  # the newest folders, oldest first
        self._announced: set[WrittenSave] = set()

    def counts(self, written: WrittenSave) -> bool:
        """Whether it is part of a checkpoint already. Then its files must not be written or removed any more.

        The agent may not know: the answer to its commit may have been lost, or another worker may have committed it.
        """
        return written in self._announced and self._is_named(written) is True

    def begin(self, written: WrittenSave) -> None:
        """Note a save that is about to be written, and remove the files of saves that no worker can complete.

        Otherwise each save that fails on one worker would leave the files of the other workers for ever.
        """
        for old in [one for one in self._written if one != written]:
            with contextlib.suppress(ElasticError):  # the next save tries again
                if self._is_settled(old):
                    self._forget(old)
        if written not in self._written:
            self._written.append(written)
        if written.data not in self._held:
            self._held = [*self._held, written.data][-_HELD:]
        for old in [one for one in self._written if one.data not in self._held]:
            with contextlib.suppress(ElasticError):
                self._store.delete([old.record, *old.files])
                self._forget(old)

    def failed(self, written: WrittenSave) -> None:
        """Remove the files of a save that could not be written: the disk may be full.

        They stay if their record may have been written, because another worker may use them.
        """
        if written not in self._announced:
            with contextlib.suppress(ElasticError):
                self._store.delete(written.files)
                self._forget(written)

    def announce(self, written: WrittenSave) -> None:
        """Note that its record is about to be written. From here on others may know of it, even if that fails."""
        self._announced.add(written)

    def _is_settled(self, written: WrittenSave) -> bool:
        """Whether its files must stay: it is a checkpoint, was set aside, or has a manifest that cannot be read."""
        if self._store.get(layout.quarantined(written.step)) is not None:
            return True
        named = self._is_named(written)
        return self._store.get(layout.manifest(written.step)) is not None if named is None else named

    def _is_named(self, written: WrittenSave) -> bool | None:
        """Whether the manifest of its step names it; None if there is no manifest that can be read."""
        try:
            return checkpoints.read(self._store, written.step).data == written.data
        except CheckpointDamaged:
            return None

    def _forget(self, written: WrittenSave) -> None:
        self._written.remove(written)
        self._announced.discard(written)
