"""Whether a run can begin at a place: nobody's files may get mixed with a run's, or be removed with them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.adapters.storage.s3.store import S3Store
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_elastic.adapters.storage.store import Store

#: Objects that may exist where a run begins. Exact forms only: `checkpoints/mine.pt` is somebody's own file.
_OURS = re.compile(
    r"control/[0-9]{20}-[0-9a-f]{8}\.json"  # a request that came early, or was left behind
    # Copied from another run, to start with its checkpoints: see docs/how-to/troubleshooting.md.
    r"|checkpoints/(manifests|pins|quarantine|uses)/[0-9]{12}\.json"
    r"|checkpoints/pins/[0-9]{12}/[0-9a-f]{16}\.json"
    r"|checkpoints/evaluations/[0-9]{12}/[^/]+\.json"
    rf"|{re.escape(layout.VERIFIED)}|{re.escape(layout.RESUMED)}"
    rf"|checkpoints/data/[0-9]{{12}}-a[0-9]{{4,}}-g[0-9]{{2,}}({layout.RECOVERED})?/.+"
    r"|controller\.log"  # only ever appended to
    r"|\.elastic-probe-[0-9a-f]{16}"  # of a probe at work, or one that was killed
    r"|(.+/)?\.elastic-tmp-[^/]*"  # of a writer at work, or one that was killed
    r"|(.+/)?\.nfs[0-9a-f]+",  # what NFS keeps of a removed file that somebody still reads
    re.ASCII | re.DOTALL,
)


def foreign_object(store: Store) -> str | None:
    """The name of an object at `store` that is no part of a run; None if there is none.

    Stops at the first one, because the place may be somebody's home folder.

    Raises:
        StoreError: the storage is out of reach.
    """
    return next((name for name in names(store) if not _OURS.fullmatch(name)), None)


def names(store: Store) -> Iterable[str]:
    """The names of all objects at `store`, one after the other, also of unfinished ones. Raises StoreError."""
    if isinstance(store, FolderStore | S3Store):
        return store.names()
    return (entry.key for entry in store.list())
