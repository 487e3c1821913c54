"""The run's own disk is full when training comes to its end."""

from __future__ import annotations

from pathlib import Path

from airflow_elastic.adapters import checkpoints
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.support.driving import Driven, driving, left_over, training
from tests.support.small_disk import fill_up, small_disk


def waits(driven: Driven) -> bool:
    """Whether a worker says that it does."""
    logs = driven.files.folder.glob("node-*/agent.log")
    return any("its last state is not written; trying again" in log.read_text() for log in logs)


async def test_what_was_saved_last_waits_for_room(tmp_path: Path) -> None:
    policy = CheckpointPolicy(every_steps=1000)
    spec = training("--epochs=3", "--step-seconds=0.1", f"--out={tmp_path}/out", checkpoint=policy)
    with small_disk(tmp_path / "disk") as disk:
        async with driving(disk / "run", spec) as driven:
            await driven.at_step(5)
            fill_up(disk / "ballast")
            await driven.until(lambda: waits(driven), "that a worker waits for room")
            assert not checkpoints.steps(driven.run.store)
            (disk / "ballast").unlink()
            state = await driven.end()
        assert (state.outcome, len(state.attempts)) == ("succeeded", 1)
        assert state.checkpoint is not None
        assert state.checkpoint.step == 30
        assert not checkpoints.problems(driven.run.store, checkpoints.read(driven.run.store, 30))
        assert (tmp_path / "out").exists()
        assert left_over(disk / "run") == []
