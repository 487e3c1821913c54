"""The history of real runs: it goes on over failures, and says what each worker uses."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from airflow_elastic.adapters.records.history import read_history
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.core.history import heatmap, matrix, select
from tests.support.driving import driving, training


async def test_a_run_whose_lead_is_killed_has_one_history_with_both_attempts(tmp_path: Path) -> None:
    spec = training("--epochs=20", "--step-seconds=0.1", tensorboard=True)
    board = tmp_path / "run" / "tensorboard"
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(20)
        await driven.until((board / "attempt-0001").exists, "event files of the first attempt")
        number = driven.state.attempt.number
        driven.kill_node(0)
        await driven.until(lambda: len(driven.state.attempts) > number, "the next attempt")
        state = await driven.end()
    assert state.outcome == "succeeded"
    history = read_history(open_store(str(tmp_path / "run")))
    series = select(history, points=2000)["series"]
    attempts = [value for value in series["attempt"]["mean"] if value is not None]
    assert attempts == sorted(attempts)
    assert set(attempts) == {1.0, 2.0}
    begun = history.training.begun
    assert begun[1] < begun[2]
    # Of the killed lead the last ten seconds may be missing; of the second attempt nothing is.
    pairs = list(zip(series["step"]["t"], series["step"]["max"], strict=True))
    second = [step for t, step in pairs if step is not None and t >= begun[2]]
    assert all(a <= b for a, b in pairwise(second))
    assert second[-1] == state.attempt.last_step
    losses = zip(series["loss"]["t"], series["loss"]["mean"], strict=True)
    assert any(loss is not None and t >= begun[2] for t, loss in losses)
    assert [value for value in series["workers"]["mean"] if value is not None][-1] == 2
    assert [value for value in series["restarts"]["mean"] if value is not None][-1] == 1
    assert heatmap(history)["ranks"] == [0, 1]
    assert len(matrix(history, "memory_bytes")["rows"]) >= 2
    assert {path.name for path in board.iterdir()} == {"attempt-0001", "attempt-0002"}
    events = EventAccumulator(str(board / "attempt-0002")).Reload().Scalars("loss")
    assert events[-1].step == state.attempt.last_step
