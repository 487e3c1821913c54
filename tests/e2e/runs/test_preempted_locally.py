"""A worker of this machine that somebody else asks to end, as a batch system does before it takes the machine back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from airflow_elastic.core.state import FailureKind
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.support.driving import driving, training


async def test_a_worker_that_is_asked_to_end_saves_and_the_run_goes_on_from_exactly_there(
    tmp_path: Path,
) -> None:
    spec = training("--epochs=8", "--step-seconds=0.05", checkpoint=CheckpointPolicy(every_steps=1000))
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(12)
        agent = driven.files.agent(driven.node_at(1))
        assert agent is not None
        os.kill(agent.pid, signal.SIGTERM)
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    first, second = state.attempts
    assert first.failure is not None
    assert (first.failure.kind, state.restarts_used) == (FailureKind.PREEMPTED, 0), first.failure
    assert first.last_step == second.from_step >= 12, "no step was lost"
