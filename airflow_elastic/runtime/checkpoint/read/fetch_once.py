"""Download files that several ranks of a worker need only once per worker, by one of its ranks."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from airflow_elastic.runtime.tiers.peers import peer_client
from airflow_elastic.runtime.tiers.tiered_files import TieredFiles
from airflow_elastic.spec.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.runtime.checkpoint.read.load import ProgressCallback, StateLoader
    from airflow_elastic.runtime.collectives.process_group import Collectives
    from airflow_elastic.runtime.tiers.tiered_files import LocalFiles, ReadableFiles


class FetchOnce:
    """Fetches one rank's share of the files that the ranks of its worker need.

    Args:
        store: where the run is stored; no folder of this machine.
        ranks: this rank among the others.
        procs: number of ranks of the worker.
        folder: on the worker's own disk, for fetched files. The same for all ranks of the worker.
    """

    def __init__(self, store: Store, ranks: Collectives, procs: int, folder: Path) -> None:
        self._store, self._ranks, self._procs, self._folder = store, ranks, procs, folder

    def fetch(
        self, loading: StateLoader, nearby: LocalFiles, told: ProgressCallback
    ) -> tuple[ReadableFiles, int]:
        """Fetch the files that several ranks need. All ranks call this together.

        Args:
            loading: what this rank will read.
            nearby: files that need not be read from storage.
            told: called with the bytes that this rank has fetched so far, and all bytes that it will fetch and read.

        Returns:
            Where to read files from, and how many bytes this rank has fetched.

        Raises:
            StoreError: the storage failed; raised on all ranks.
        """
        rank, procs = self._ranks.rank, self._procs
        first = rank - rank % procs
        needed: Counter[str] = Counter()
        for each in self._ranks.gather(loading.needed)[first : first + procs]:
            needed.update(each)
        sizes = {file.key: file.size for file in loading.manifest.files}
        shared = sorted(
            key for key, size in needed.items() if size > sizes.get(key, 0) and key not in nearby.disk
        )
        fetched, trouble = 0, None
        try:
            there = {entry.key for entry in self._store.list(loading.manifest.data)} if shared else set()
            mine = sorted(there.intersection(shared[rank % procs :: procs]))  # reading reports missing files
            whole = sum(sizes.get(key, 0) for key in mine) + loading.file_bytes + loading.memory_bytes
            for key in mine:
                self._download(key, nearby, partial(_add, told, fetched, whole))
                fetched += sizes.get(key, 0)
        except StoreError as error:
            trouble = str(error)
        self._raise_together(trouble)
        here = {key: self._folder / key for key in shared}
        return TieredFiles(self._store, replace(nearby, disk={**nearby.disk, **here})), fetched

    def clear(self) -> None:
        """Remove the fetched files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _download(self, key: str, nearby: LocalFiles, told: Callable[[int], None]) -> None:
        path, loan = self._folder / key, nearby.loan(key)
        if loan is not None:
            try:
                peer_client.save(loan, key, path, told)
                return
            except OSError as error:
                nearby.not_lent(key, loan, error)
        self._store.download(key, path, durable=False, told=told)

    def _raise_together(self, error: str | None) -> None:
        """Raise StoreError on all ranks if any rank has failed, and remove the fetched files."""
        for failure in self._ranks.gather(error):
            if failure is not None:
                self.clear()
                raise StoreError(failure)


def _add(told: ProgressCallback, before: int, whole: int, done: int) -> None:
    told(before + done, whole)
