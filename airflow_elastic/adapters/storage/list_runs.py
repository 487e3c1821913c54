"""The runs below a URI: in a folder of runs, or below a prefix of S3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.adapters.storage.s3.store import S3Store
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_elastic.adapters.storage.store import Store

#: How many folders deep to look for runs. A task's run is in the folder of its map index, which is in those of its
#: task, its DAG run and its DAG. And the most folders to look through, because this may be somebody's home.
DEPTH, FOLDERS = 4, 5_000


def runs_below(store: Store, known: Collection[str] = ()) -> list[str]:
    """The paths of the runs below the store, relative to it, sorted: `mnist/first`. Does not look inside a run.

    Args:
        store: the place.
        known: paths that were found before. If such a folder is still there, it is not asked again what it is.

    Raises:
        StoreError: the storage is out of reach.
    """
    found: list[str] = []
    level, seen = [""], 0
    for _ in range(DEPTH):
        deeper: list[str] = []
        for prefix in level:
            if seen > FOLDERS:
                break
            for name in _folders(store, prefix):
                seen += 1
                key = f"{prefix}{name}/"
                if key.rstrip("/") in known or store.list(key + layout.journal_entry(0)):
                    found.append(key.rstrip("/"))
                else:
                    deeper.append(key)
        level = deeper
    return sorted(found)


def _folders(store: Store, prefix: str) -> list[str]:
    return store.folders(prefix) if isinstance(store, FolderStore | S3Store) else []
