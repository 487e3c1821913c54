"""The jobs of a run, as its engine gets them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checkpoint_retention
from airflow_elastic.adapters.records.reports import raise_fence
from airflow_elastic.engines.api import Job
from airflow_elastic.launchers import find_launcher
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.errors import StoreError, SubmitHeld

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.core.state import RunState
    from airflow_elastic.engines.api import Engine
    from airflow_elastic.spec.errors import SubmitRefused
    from airflow_elastic.spec.events import Event


def tidy_up(store: Store, state: RunState) -> None:
    """Remove what attempts left half-written, when none of them lives. Where storage fails it only takes space."""
    following = state.attempt.number + 1
    with contextlib.suppress(StoreError):
        raise_fence(
            store, following
        )  # what runs on where nobody can reach it commits nothing without its files
        checkpoint_retention.remove_uncommitted(store, following)


def answered(no: SubmitHeld | SubmitRefused, at: float, attempt: int) -> Event:
    """What the engine has answered instead of taking the job of an attempt."""
    if isinstance(no, SubmitHeld):
        return ev.SubmitHeldByEngine(at, attempt, str(no))
    return ev.SubmitRefusedByEngine(at, attempt, str(no), for_now=no.for_now)


def job_of(run_uri: str, state: RunState, attempt: int, engine: Engine) -> Job:
    """The job that an attempt is in: its own, or that of an earlier one whose agents have outlived their ranks."""
    this = state.attempts[attempt - 1]
    return Job(
        run_uri,
        state.spec,
        this.home or attempt,
        this.workers,
        state.avoid,
        state.has_elsewhere,
        state.suspect,
        standby=engine.capabilities.rejoin
        and state.spec.restart.policy != "Never"
        and find_launcher(state.spec.launcher).elastic,
    )
