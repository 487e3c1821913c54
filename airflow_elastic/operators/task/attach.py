"""Choose the run that a try of a task works on: the existing one, if possible."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.control.runs import Run, start_run
from airflow_elastic.core.machine import replay
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.hooks import ElasticHook
    from airflow_elastic.spec.run import RunSpec


def attach(hook: ElasticHook, uri: str, spec: RunSpec, owner: str, task: str | None = None) -> Run:
    """Create the run at `uri`, take it over, or reopen it.

    A run that has succeeded is returned as it is, if no task has taken its result yet. So a retry after a failure of
    Airflow does not train again. If a task has taken the result, somebody has cleared a task that succeeded. Then a new
    run is created beside it, at `<uri>~2`, then `~3`, and so on.

    Args:
        hook: opens runs and engines.
        uri: where the run is or will be stored.
        spec: the run's specification.
        owner: id of the task instance that owns the run from now on.
        task: key of that task instance, the same for all its tries.

    Raises:
        InvalidInput: the specification cannot be carried out, or another run is stored there. No run was created.
        StoreError: the storage cannot be reached, or cannot store a run.
    """
    store = current(hook, uri)
    engine = hook.engine(spec.engine, store.uri)
    return start_run(store, spec, owner=owner, task=task, engine=engine, opens=hook.open_store)


def current(hook: ElasticHook, uri: str) -> Store:
    """The store of the task's current or next run: the first of `<uri>`, `<uri>~2`, … without a result taken.

    Raises:
        StoreError: the storage cannot be reached.
    """
    for candidate in _candidates(uri):
        store = hook.open_store(candidate)
        state = replay(Journal(store).read())
        if state is None or state.outcome != "succeeded" or not store.list(layout.ACKNOWLEDGED):
            return store
    raise AssertionError  # count() has no end


def newest(hook: ElasticHook, uri: str) -> Store:
    """The store of the newest run at this URI: beside one that has succeeded there may be `<uri>~2`, and so on.

    Raises:
        StoreError: the storage cannot be reached.
    """
    found = hook.open_store(uri)
    for candidate in _candidates(uri):
        store = hook.open_store(candidate)
        state = replay(Journal(store).read())
        if state is None:
            return found
        found = store
        if state.outcome != "succeeded":
            return found
    raise AssertionError  # count() has no end


def acknowledge(run: Run, owner: str) -> None:
    """Record that the task has taken the run's result."""
    run.store.create(layout.ACKNOWLEDGED + owner, b"")


def _candidates(uri: str) -> Iterator[str]:
    yield uri
    yield from (f"{uri.rstrip('/')}~{number}" for number in count(2))
