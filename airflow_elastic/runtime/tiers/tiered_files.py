"""The files of a checkpoint: some are on this machine's disk or in other workers' memory, the others in storage."""

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
    """The methods of a `Store` that reading a checkpoint needs."""

    def list(self, prefix: str = "") -> list[Entry]: ...
    def stream(self, key: str, start: int, size: int) -> AbstractContextManager[Reader]: ...
    def local_path(self, key: str) -> Path | None: ...


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Files that need not come from storage, by their keys.

    Attributes:
        disk: on this machine's disk; the first choice.
        memory: in other workers' memory.
        silent: workers that did not answer. They are not asked again.
    """

    disk: Mapping[str, Path] = field(default_factory=dict)
    memory: Mapping[str, PeerFile] = field(default_factory=dict)
    silent: set[Address] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.disk or self.memory)

    def loan(self, key: str) -> PeerFile | None:
        """The worker that has a file in memory; None if no worker is known to have it."""
        loan = self.memory.get(key)
        return None if loan is None or loan.place in self.silent else loan

    def not_lent(self, key: str, loan: PeerFile, error: OSError) -> None:
        """Note that a file could not be read from another worker, so that it comes from storage."""
        log.warning(
            "%s: cannot be read from another worker's memory, so it comes from storage: %s", key, error
        )
        if not isinstance(error, NotServed):
            self.silent.add(loan.place)


class TieredFiles:
    """The files of a store. Some are read from a nearer place.

    Args:
        store: the store.
        nearby: the files that need not come from it.
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
        """As `Store.stream`. Raises CheckpointDamaged if a nearer place fails: the store may have the file intact."""
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
        """A reader of another worker's copy; None if no worker has one, or it cannot be opened."""
        loan = self._nearby.loan(key)
        try:
            return None if loan is None else ends.enter_context(open_peer_range(loan, key, start, size))
        except OSError as error:
            if loan is not None:
                self._nearby.not_lent(key, loan, error)
            return None

    def local_path(self, key: str) -> Path | None:
        """The path that a file is read from on this machine; None if it comes from another machine."""
        if path := self._nearby.disk.get(key):
            return path
        return None if self._nearby.loan(key) else self._store.local_path(key)
