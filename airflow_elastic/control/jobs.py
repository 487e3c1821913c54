"""The jobs of a run, in the form that its engine gets."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.records.reports import raise_fence
from airflow_elastic.engines.api import Job
from airflow_elastic.launchers import find_launcher
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.errors import StoreError, SubmitHeld

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.core.state import RunState
    from airflow_elastic.engines.api import Engine
    from airflow_elastic.spec.actions import SetNewerAside
    from airflow_elastic.spec.errors import SubmitRefused
    from airflow_elastic.spec.events import Event


def tidy_up(store: Store, state: RunState) -> None:
    """Remove half-written files of ended attempts. Errors are ignored: what remains only takes space."""
    following = state.attempt.number + 1
    with contextlib.suppress(StoreError):
        # A process of the attempt that cannot be reached may still run, but can commit nothing without its files.
        raise_fence(store, following)
        checkpoint_retention.remove_uncommitted(store, following)


def set_newer_aside(store: Store, state: RunState, action: SetNewerAside, at: float) -> Event:
    """Let the attempt go on from an earlier checkpoint. Where that is gone by now, nothing is set aside.

    The fence comes first: no earlier attempt can commit anything after it.
    """
    raise_fence(store, action.attempt)
    reason = f"the run goes on from step {action.step} with attempt {action.attempt}, as somebody asked"
    try:
        steps = checkpoint_retention.set_newer_aside(
            store, action.step, attempt=action.attempt, reason=reason
        )
        phases = sum(phase.complete for phase in checkpoints.read(store, action.step).phases)
    except CheckpointDamaged as error:
        newest = state.saved_step
        return ev.ResumeRefused(at, action.attempt, action.step, f"{error}; it goes on from {newest}")
    return ev.NewerSetAside(at, action.attempt, action.step, tuple(steps), phases)


def answered(no: SubmitHeld | SubmitRefused, at: float, attempt: int) -> Event:
    """The event for an engine's refusal to take the job of an attempt."""
    if isinstance(no, SubmitHeld):
        return ev.SubmitHeldByEngine(at, attempt, str(no))
    return ev.SubmitRefusedByEngine(at, attempt, str(no), for_now=no.for_now)


def job_of(run_uri: str, state: RunState, attempt: int, engine: Engine) -> Job:
    """The job of an attempt: its own, or an earlier one whose agents have outlived their ranks."""
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
        origin=state.origin,
    )
