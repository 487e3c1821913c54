"""Which jobs of a cluster are not needed any more, by the state of their runs."""

from __future__ import annotations

from airflow_elastic.core.state import RunState


def why_reaped(attempt: int, state: RunState | None) -> str | None:
    """Why the job of an attempt may be deleted; None if it is needed or must stay.

    Args:
        attempt: the job's.
        state: of its run; None if the run is gone.
    """
    if state is None:
        return "its run is gone"
    if attempt < (state.attempt.home or state.attempt.number):
        return f"its run is at attempt {state.attempt.number}"
    if not state.ended:
        return None
    if state.outcome == "succeeded" and state.spec.cleanup != "All":
        return None  # the cluster deletes it after ttl_seconds
    return f"its run has ended ({state.outcome})"
