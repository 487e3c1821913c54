"""What an agent has written of saves that are no checkpoints, or that nobody knows to be."""

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

#: Older states than so many no worker holds any more, also one that is a save behind: nobody can complete them.
_HELD = shared_memory.COUNT + 1


@dataclass(frozen=True, slots=True)
class WrittenSave:
    """What a worker has written of a save, or is about to.

    Attributes:
        step: of the save.
        data: folder of the checkpoint that it is to be.
        word: what tells of the files.
        files: their keys.
    """

    step: int
    data: str
    word: str
    files: tuple[str, ...]


class UncommittedSaves:
    """Those of an agent, until they count, or nobody can complete them any more."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._written: list[WrittenSave] = []
        self._held: list[str] = []  # the newest folders, the last one last
        self._told: set[WrittenSave] = set()

    def counts(self, written: WrittenSave) -> bool:
        """Whether it is part of a checkpoint already: the answer to its commit may have been lost, or another worker
        have committed it. Nothing may be written, or removed, there any more.
        """
        return written in self._told and self._is_named(written) is True

    def begin(self, written: WrittenSave) -> None:
        """It is about to be written. Of those that nobody can complete any more nothing stays: each save that fails
        would leave what the other workers have written.
        """
        for old in [one for one in self._written if one != written]:
            with contextlib.suppress(ElasticError):  # the next save comes to it
                if self._is_settled(old):
                    self._forget(old)
        if written not in self._written:
            self._written.append(written)
        if written.data not in self._held:
            self._held = [*self._held, written.data][-_HELD:]
        for old in [one for one in self._written if one.data not in self._held]:
            with contextlib.suppress(ElasticError):
                self._store.delete([old.word, *old.files])
                self._forget(old)

    def failed(self, written: WrittenSave) -> None:
        """It could not be written. Unless somebody may know of its files: it may be the disk that is full."""
        if written not in self._told:
            with contextlib.suppress(ElasticError):
                self._store.delete(written.files)
                self._forget(written)

    def tell(self, written: WrittenSave) -> None:
        """From here on others may know of it, whatever the answer is."""
        self._told.add(written)

    def _is_settled(self, written: WrittenSave) -> bool:
        """Whether it is a checkpoint, was set aside, or has a manifest that nobody can read: then its files stay."""
        if self._store.get(layout.quarantined(written.step)) is not None:
            return True
        named = self._is_named(written)
        return self._store.get(layout.manifest(written.step)) is not None if named is None else named

    def _is_named(self, written: WrittenSave) -> bool | None:
        """Whether the manifest of its step names it; None where there is none that can be read."""
        try:
            return checkpoints.read(self._store, written.step).data == written.data
        except CheckpointDamaged:
            return None

    def _forget(self, written: WrittenSave) -> None:
        self._written.remove(written)
        self._told.discard(written)
