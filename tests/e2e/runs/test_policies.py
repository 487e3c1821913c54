"""Runs of real processes that choose their number of workers themselves."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.core.machine import replay
from airflow_elastic.core.scaling.decide import decide
from airflow_elastic.spec.events import ScaleDecided
from airflow_elastic.spec.run import Health, RunSpec, Workers
from airflow_elastic.spec.scaling.policy import LoadTarget, ScalingPolicy, Window
from tests.support.driving import Driven, driving, left_over, training

#: Short times, so that a test need not wait; and a clock that jumps must not look like a hang.
SOON = {"interval_seconds": 0.2, "up_seconds": 1.0, "down_seconds": 1.0, "snooze_seconds": 2.0}
PATIENT = Health(no_progress_seconds=1e8, start_seconds=1e8)


def policy_run(policy: ScalingPolicy, *words: str) -> RunSpec:
    return training(*words, workers=Workers(1, min=1, max=3), scaling_policy=policy, health=PATIENT)


def check_replay(driven: Driven) -> list[ScaleDecided]:
    """The journal alone gives the same decisions and the same state again."""
    events = Journal(driven.run.store).read()
    decisions = [event for event in events if isinstance(event, ScaleDecided)]
    spec = driven.state.spec
    assert spec.scaling_policy is not None
    for event in decisions:
        assert decide(spec.scaling_policy, spec.workers, event.seen) == event.decision
    assert replay(events) == driven.run.state
    return decisions


async def test_it_grows_at_night_and_shrinks_by_day(tmp_path: Path) -> None:
    """With each sample seen once, whatever the number of workers."""
    noon = datetime(2027, 3, 1, 12, 0, tzinfo=UTC).timestamp()
    ahead = noon - time.time()

    def clock() -> float:
        return time.time() + ahead

    nights = ScalingPolicy(windows=(Window("0 20 * * *", "0 6 * * *", workers=3),), must_pay=False, **SOON)
    seen = tmp_path / "samples"
    seen.mkdir()
    spec = policy_run(nights, "--epochs=12", "--step-seconds=0.15", f"--samples={seen}")
    async with driving(tmp_path / "run", spec, now=clock) as driven:
        await driven.at_step(5)
        assert driven.state.target == 1
        ahead += 9 * 3600  # 21:00
        await driven.until(lambda: driven.state.attempt.workers == 3, "3 workers at night")
        await driven.at_step(driven.step + 5)
        ahead += 10 * 3600  # 07:00
        await driven.until(lambda: driven.state.attempt.workers == 1, "1 worker by day")
        state = await driven.end()
        decisions = check_replay(driven)
    assert state.outcome == "succeeded", state.reason
    assert len(state.attempts) == 1, "each step was made in place"
    assert [one.decision.workers for one in decisions if one.decision.acts] == [3, 1]
    assert all(one.decision.rule == "window" for one in decisions if one.decision.acts)
    # 640 samples an epoch, 64 a step: each step's samples are those of one worker alone, in every generation.
    steps: dict[int, list[int]] = {}
    for file in sorted(seen.iterdir()):
        for line in file.read_text().splitlines():
            step, *samples = map(int, line.split())
            steps.setdefault(step, []).extend(samples)
    epochs = [sorted(s for step in range(10 * e + 1, 10 * e + 11) for s in steps[step]) for e in range(12)]
    assert epochs == [list(range(640))] * 12
    assert left_over(tmp_path / "run") == []


async def test_a_load_off_its_target_is_answered_once(tmp_path: Path) -> None:
    """A step takes 0.1 s here with any number of workers, so more of them do not help; the run says so and stays."""
    fast = ScalingPolicy(load=(LoadTarget("step_seconds", target=0.05),), **SOON)
    spec = policy_run(fast, "--epochs=10", "--step-seconds=0.1")
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
        decisions = check_replay(driven)
    assert state.outcome == "succeeded", state.reason
    assert state.scaling.steps <= 2
    assert decisions[0].decision.rule in ("load", "cooldown")
    assert driven.run.status()["scaling"]["reason"]
