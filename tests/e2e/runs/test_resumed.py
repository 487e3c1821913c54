"""Somebody chooses the checkpoint to go on from: the run trains as if it had never gone further."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.core.state import Cause
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.events import NewerSetAside
from tests.support.driving import driving, left_over, training


@pytest.mark.parametrize("disk", [False, True])
async def test_a_live_run_goes_back_and_ends_as_if_it_had_never_gone_further(
    tmp_path: Path, disk: bool
) -> None:
    """With `disk`, workers have newer states on their disks, and must not use them."""
    folder = tmp_path / "disk"
    folder.mkdir()
    policy = CheckpointPolicy(
        every_steps=10,
        keep_last=100,
        disk=str(folder) if disk else None,
        disk_every_steps=1 if disk else None,
    )
    spec = training("--epochs=30", "--step-seconds=0.02", checkpoint=policy)
    async with driving(tmp_path / "run", spec) as driven:
        await driven.until(lambda: driven.state.checkpoints >= 3, "three checkpoints")
        chosen, *newer = checkpoints.steps(driven.run.store)
        await driven.at_step(newer[-1] + 4)
        driven.run.ask_resume(chosen, by="ada")
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        assert await driven.gone_on() == chosen
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    assert [attempt.cause for attempt in state.attempts] == [Cause.RESUME, Cause.SUCCEEDED]
    assert state.restarts_used == 0
    (aside,) = [event for event in Journal(driven.run.store).read() if isinstance(event, NewerSetAside)]
    assert set(newer) <= {*aside.steps}
    kept = [step for step in checkpoints.steps(driven.run.store) if step > chosen]
    assert {checkpoints.read(driven.run.store, step).attempt for step in kept} == {2}
    assert chosen in checkpoint_retention.pinned(driven.run.store)
    assert left_over(tmp_path / "run") == []


async def test_a_failed_run_goes_on_from_the_chosen_step_when_it_is_carried_on(tmp_path: Path) -> None:
    spec = training("--epochs=20", "--fail-at=23", checkpoint=CheckpointPolicy(every_steps=5, keep_last=100))
    async with driving(tmp_path, spec) as driven:
        failed = await driven.end()
    assert failed.outcome == "failed"
    chosen, *newer = checkpoints.steps(driven.run.store)  # some saves may have been left out
    assert newer
    driven.run.ask_resume(chosen, by="ada")
    async with driving(tmp_path, spec) as again:
        await again.end()
    began = [one.restored_at for one in again.state.lives if one.advanced]
    assert began[0] == chosen


async def test_what_cannot_be_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    spec = training("--epochs=100", "--step-seconds=0.02", checkpoint=CheckpointPolicy(every_steps=5))
    async with driving(tmp_path, spec) as driven:
        await driven.until(lambda: driven.state.checkpoint, "a checkpoint")
        with pytest.raises(InvalidInput, match=r"step 3 .*there are: \d"):
            driven.run.ask_resume(3, by="ada")
        with pytest.raises(InvalidInput, match="engine 'local' has no other machine"):
            driven.run.ask_exclude("gpu-7", by="ada")
        assert driven.run.store.list("control/") == []
