"""One run as the memory keeps it, read from its storage. It needs no database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.history import read_history
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.records.reports import read_progress
from airflow_elastic.core.brain.facts import facts
from airflow_elastic.core.machine import replay
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import RunMissing

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.core.brain.facts import Facts
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.status import Progress


def facts_of(store: Store, now: float) -> Facts:
    """What the memory keeps of the run at a store.

    Raises:
        RunMissing: there is none.
        StoreError: it cannot be read.
    """
    events = Journal(store).read()
    state = replay(events)
    if state is None:
        raise RunMissing(f"{store.uri} holds no run")
    progress = read_progress(store, state.attempt.number)
    heard = _heard(store, events, progress)
    return facts(store.uri, state, progress, read_history(store, now), len(events), min(now, heard))


def _heard(store: Store, events: list[Event], progress: Progress | None) -> float:
    """When the run was last heard of: nobody may have ended one whose machine is gone."""
    try:
        written = float(json.loads(store.get(layout.STATUS) or b"{}").get("at", 0.0))
    except (ValueError, AttributeError, TypeError):
        written = 0.0
    return max(events[-1].at, progress.at if progress else 0.0, written)
