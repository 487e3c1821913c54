"""The files of a checkpoint, of which some lie on this machine's own disk, or in other workers' memory."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.storage.open_range import open_file
from airflow_elastic.adapters.storage.store import Entry
from airflow_elastic.runtime.tiers.peers.connection import Address
from airflow_elastic.runtime.tiers.peers.peer_client import NotServed, PeerFile, open_peer_range

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from airflow_elastic.adapters.storage.store import Reader


log = logging.getLogger(__name__)


class ReadableFiles(Protocol):
    """What reading a checkpoint takes of a `Store`."""

    def list(self, prefix: str = "") -> list[Entry]: ...
    def stream(self, key: str, start: int, size: int) -> AbstractContextManager[Reader]: ...
    def local_path(self, key: str) -> Path | None: ...


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Where files lie that need not come from storage, by their keys.

    Attributes:
        disk: of this machine; the first choice.
        memory: of other workers.
        silent: those of them that did not answer; they are asked no more.
    """

    disk: Mapping[str, Path] = field(default_factory=dict)
    memory: Mapping[str, PeerFile] = field(default_factory=dict)
    silent: set[Address] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.disk or self.memory)

    def loan(self, key: str) -> PeerFile | None:
        """Who lends a file; None where nobody does, as far as is known."""
        loan = self.memory.get(key)
        return None if loan is None or loan.place in self.silent else loan

    def not_lent(self, key: str, loan: PeerFile, error: OSError) -> None:
        """It was not had: storage is asked."""
        log.warning("%s in another worker's memory cannot be read, storage is asked: %s", key, error)
        if not isinstance(error, NotServed):
            self.silent.add(loan.place)


class TieredFiles:
    """The same files as a store's, some of them read from somewhere else.

    Args:
        store: the store.
        nearby: what need not come from it.
    """

    def __init__(self, store: ReadableFiles, nearby: LocalFiles) -> None:
        self._store, self._nearby = store, nearby

    def list(self, prefix: str = "") -> builtins.list[Entry]:
        """All of them, sorted by key."""
        found = {entry.key: entry for entry in self._store.list(prefix)}
        lent = self._nearby.memory.items()
        found |= {key: Entry(key, loan.size) for key, loan in lent if key.startswith(prefix)}
        for key, path in self._nearby.disk.items():
            if key.startswith(prefix):
                with contextlib.suppress(OSError):
                    found[key] = Entry(key, path.stat().st_size)
        return [found[key] for key in sorted(found)]

    @contextlib.contextmanager
    def stream(self, key: str, start: int, size: int) -> Iterator[Reader]:
        """As a store's. Raises CheckpointDamaged where it is not the store that fails: that may have it whole."""
        path = self._nearby.disk.get(key)
        with contextlib.ExitStack() as ends:
            lent = None if path else self._lent(key, start, size, ends)
            if path is None and lent is None:
                yield ends.enter_context(self._store.stream(key, start, size))
                return
            try:
                if path is not None:
                    yield ends.enter_context(open_file(path, start, size))
                elif lent is not None:
                    yield lent
            except OSError as error:
                where = path or f"{key} in another worker's memory"
                raise CheckpointDamaged(f"{where} cannot be read: {error}") from error

    def _lent(self, key: str, start: int, size: int, ends: contextlib.ExitStack) -> Reader | None:
        """What a worker lends of it; None where nobody does, or nothing comes."""
        loan = self._nearby.loan(key)
        try:
            return None if loan is None else ends.enter_context(open_peer_range(loan, key, start, size))
        except OSError as error:
            if loan is not None:
                self._nearby.not_lent(key, loan, error)
            return None

    def local_path(self, key: str) -> Path | None:
        """Where on this machine a file is read from; None where it comes from another one."""
        if path := self._nearby.disk.get(key):
            return path
        return None if self._nearby.loan(key) else self._store.local_path(key)
