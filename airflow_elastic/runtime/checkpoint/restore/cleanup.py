"""Remove the files of unfinished saves of earlier attempts, while a checkpoint is restored."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from airflow_elastic.adapters.records import checkpoint_retention
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.spec.errors import StoreError

log = logging.getLogger(__name__)


@contextlib.contextmanager
def cleanup(store: Store, attempt: int) -> Iterator[None]:
    """A context for rank 0, when no earlier attempt is running: removes the files in a thread, and waits for it.

    That takes ten requests, mostly less time than reading a checkpoint.
    """
    tidying = threading.Thread(target=_tidy, args=(store, attempt), name="elastic-tidy", daemon=True)
    tidying.start()
    try:
        yield
    finally:
        tidying.join()


def _tidy(store: Store, attempt: int) -> None:
    try:
        removed = checkpoint_retention.remove_uncommitted(store, attempt)
    except StoreError as error:
        log.warning("files of unfinished saves could not be removed; they only take space: %s", error)
    else:
        if removed:
            log.info("removed %d files of unfinished saves", removed)
