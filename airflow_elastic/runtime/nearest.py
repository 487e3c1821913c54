"""The files of a checkpoint, of which some lie on this machine's own disk."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.store import Entry

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from airflow_elastic.adapters.store import Reader


class Files(Protocol):
    """What reading a checkpoint takes of a `Store`."""

    def list(self, prefix: str = "") -> list[Entry]: ...
    def stream(self, key: str, start: int, size: int) -> AbstractContextManager[Reader]: ...
    def local_path(self, key: str) -> Path | None: ...


class Nearest:
    """The same files as a store's, some of them read from somewhere else.

    Args:
        store: the store.
        here: where files lie that need not come from it, by their keys.
    """

    def __init__(self, store: Files, here: Mapping[str, Path]) -> None:
        self._store, self._here = store, here

    def list(self, prefix: str = "") -> builtins.list[Entry]:
        """All of them, sorted by key."""
        found = {entry.key: entry for entry in self._store.list(prefix)}
        for key, path in self._here.items():
            if key.startswith(prefix):
                with contextlib.suppress(OSError):
                    found[key] = Entry(key, path.stat().st_size)
        return [found[key] for key in sorted(found)]

    @contextlib.contextmanager
    def stream(self, key: str, start: int, size: int) -> Iterator[Reader]:
        """As a store's. Raises CheckpointDamaged where it is the disk that fails: the store may have it whole."""
        path = self._here.get(key)
        if path is None:
            with self._store.stream(key, start, size) as reader:
                yield reader
            return
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(start)
                yield file
        except OSError as error:
            raise CheckpointDamaged(f"{path} cannot be read: {error}") from error

    def local_path(self, key: str) -> Path | None:
        """As the store's."""
        return self._store.local_path(key)
