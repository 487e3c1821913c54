"""Which run a try of a task works on: the one that is there, wherever that is possible."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from airflow_elastic.adapters.journal import Journal
from airflow_elastic.control.runs import Run, start_run
from airflow_elastic.core.machine import replay
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_elastic.hooks import ElasticHook
    from airflow_elastic.spec.run import RunSpec


def attach(hook: ElasticHook, uri: str, spec: RunSpec, owner: str) -> Run:
    """Create the run at `uri`, take it over, or reopen it; a fresh one beside it where it was done and delivered.

    A run that has succeeded while nobody had yet taken its result is returned as it is: a retry after a spurious
    failure must not train again. One whose result was taken is trained anew, as `<uri>~2`, then `~3`, and so on:
    somebody has cleared a task that had succeeded.

    Args:
        hook: opens runs and engines.
        uri: where the run lies, or is to lie.
        spec: what it is.
        owner: id of the task instance that owns it from now on.

    Raises:
        InvalidInput: the specification cannot be carried out, or another run lies there. Nothing was created.
        StoreError: the storage is out of reach, or cannot carry a run.
    """
    for candidate in _candidates(uri):
        store = hook.open_store(candidate)
        state = replay(Journal(store).read())
        delivered = (
            state is not None and state.outcome == "succeeded" and bool(store.list(layout.ACKNOWLEDGED))
        )
        if not delivered:
            return start_run(store, spec, owner=owner, engine=hook.engine(spec.engine, store.uri))
    raise AssertionError  # count() has no end


def acknowledge(run: Run, owner: str) -> None:
    """Note that the task has taken the run's result."""
    run.store.create(layout.ACKNOWLEDGED + owner, b"")


def _candidates(uri: str) -> Iterator[str]:
    yield uri
    yield from (f"{uri.rstrip('/')}~{number}" for number in count(2))
