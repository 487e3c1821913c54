"""Learning: what is stored of runs becomes rows. The same runs give the same rows, however often they are read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.journal import newest
from airflow_elastic.adapters.storage.list_runs import runs_below
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.brain import memory
from airflow_elastic.brain.read import facts_of
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import RunMissing, SpecError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.brain.database import Database

#: What agents still write of a run after its end comes within so many seconds.
SETTLED_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Learnt:
    """What was read.

    Attributes:
        read: URIs of runs that were read.
        unchanged: how many had ended, and were known already.
        skipped: URIs of runs that cannot be read, and why.
    """

    read: tuple[str, ...] = ()
    unchanged: int = 0
    skipped: tuple[tuple[str, str], ...] = ()


def learn(
    database: Database,
    root: str,
    *,
    opens: Callable[[str], Store] = open_store,
    clock: Callable[[], float] = time.time,
    progress: Callable[[str], None] = lambda _: None,
) -> Learnt:
    """Read all runs below a URI, and keep what is known of them. Runs that have ended are read once.

    Args:
        database: where to keep it.
        root: a folder or prefix of S3, or one run.
        opens: opens a URI.
        clock: epoch seconds.
        progress: gets each URI before it is read.

    Raises:
        RunMissing: there is no run.
        StoreError: the storage is out of reach.
        BrainUnfit, BrainUnreachable: the database is.
    """
    store = opens(root)
    own = store.list(layout.journal_entry(0))
    uris = [store.uri] if own else [f"{store.uri.rstrip('/')}/{path}" for path in runs_below(store)]
    if not uris:
        raise RunMissing(
            f"{store.uri} holds no runs: name a run, or the folder or S3 prefix that your run URIs begin with"
        )
    before, read, unchanged = memory.settled(database, SETTLED_SECONDS), [], 0
    skipped: list[tuple[str, str]] = []
    for uri in uris:
        one = store if own else opens(uri)
        if before.get(one.uri) == newest(one) + 1:
            unchanged += 1
            continue
        progress(one.uri)
        try:
            found = facts_of(one, clock())
        except (StoreError, SpecError, RunMissing) as error:
            skipped.append((one.uri, str(error)))
            continue
        memory.remember(database, found, clock())
        read.append(one.uri)
    return Learnt(tuple(read), unchanged, tuple(skipped))
