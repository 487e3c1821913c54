"""Which jobs of a cluster may go."""

from __future__ import annotations

import pytest

from airflow_elastic.control.reaping import why_reaped
from airflow_elastic.core.state import RunState
from airflow_elastic.spec import events as ev
from tests.support.builders import done, lost, spec, story

LIVE = (ev.AttemptSubmitted(1.0, 1, "a1"),)
SECOND = (*LIVE, ev.WorkersEnded(2.0, 1, lost()), ev.AttemptGone(3.0, 1), ev.AttemptSubmitted(4.0, 2, "a2"))
OVER = (*LIVE, ev.WorkersEnded(2.0, 1, done()), ev.AttemptGone(3.0, 1))


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (None, "its run is gone"),
        (story(*LIVE), None),
        (story(*SECOND), "its run is at attempt 2"),
        (story(*OVER, ev.RunEnded(4.0, "succeeded", "done")), None),
        (story(*OVER, ev.RunEnded(4.0, "stopped", "me")), "its run has ended (stopped)"),
        (
            story(*OVER, ev.RunEnded(4.0, "succeeded", "done"), run=spec(cleanup="All")),
            "its run has ended (succeeded)",
        ),
    ],
)
def test_only_what_is_needed_stays(state: RunState | None, why: str | None) -> None:
    assert why_reaped(1, state) == why
