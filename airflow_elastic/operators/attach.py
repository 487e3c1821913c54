"""Which run a try of a task works on: the one that is there, wherever that is possible."""

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
    """Create the run at `uri`, take it over, or reopen it; a fresh one beside it where it was done and delivered.

    A run that has succeeded while nobody had yet taken its result is returned as it is: a retry after a spurious
    failure must not train again. One whose result was taken is trained anew, as `<uri>~2`, then `~3`, and so on:
    somebody has cleared a task that had succeeded.

    Args:
        hook: opens runs and engines.
        uri: where the run lies, or is to lie.
        spec: what it is.
        owner: id of the task instance that owns it from now on.
        task: which task instance that is a try of.

    Raises:
        InvalidInput: the specification cannot be carried out, or another run lies there. Nothing was created.
        StoreError: the storage is out of reach, or cannot carry a run.
    """
    store = current(hook, uri)
    return start_run(store, spec, owner=owner, task=task, engine=hook.engine(spec.engine, store.uri))


def current(hook: ElasticHook, uri: str) -> Store:
    """Where the task's run is stored, or is to be: the first of `<uri>`, `<uri>~2`, … whose result nobody has taken.

    Raises:
        StoreError: the storage is out of reach.
    """
    for candidate in _candidates(uri):
        store = hook.open_store(candidate)
        state = replay(Journal(store).read())
        if state is None or state.outcome != "succeeded" or not store.list(layout.ACKNOWLEDGED):
            return store
    raise AssertionError  # count() has no end


def acknowledge(run: Run, owner: str) -> None:
    """Note that the task has taken the run's result."""
    run.store.create(layout.ACKNOWLEDGED + owner, b"")


def _candidates(uri: str) -> Iterator[str]:
    yield uri
    yield from (f"{uri.rstrip('/')}~{number}" for number in count(2))
