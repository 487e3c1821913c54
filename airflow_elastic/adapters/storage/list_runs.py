"""The runs below a URI: in a folder of runs, or below a prefix of S3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.adapters.storage.s3.store import S3Store
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

#: Runs are looked for so many folders deep: a task's run is in the folder of its DAG, that of its DAG run, its own, and
#: that of its map index. And in so many folders, should this be somebody's home.
DEPTH, FOLDERS = 4, 5_000


def runs_below(store: Store) -> list[str]:
    """Where runs are stored below, as seen from there, sorted: `mnist/first`. What is in a run is not looked through.

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
                if store.list(key + layout.journal_entry(0)):
                    found.append(key.rstrip("/"))
                else:
                    deeper.append(key)
        level = deeper
    return sorted(found)


def _folders(store: Store, prefix: str) -> list[str]:
    return store.folders(prefix) if isinstance(store, FolderStore | S3Store) else []
