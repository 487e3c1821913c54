"""12,000 random schedules of failures, duplicates, delays, several controllers, and deaths between any two lines."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from airflow_elastic.core.machine import evolve, replay
from airflow_elastic.spec.events import NewerSetAside, event_from_dict, event_to_dict
from tests.support.runs.world import World

BATCHES, SCHEDULES = 20, 600


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_schedule_keeps_the_promises_and_ends(batch: int) -> None:
    for seed in range(batch * SCHEDULES, (batch + 1) * SCHEDULES):
        _play(seed)


@pytest.mark.slow
def test_a_million_turns_with_fresh_luck() -> None:
    for _ in range(10_000):
        _play(random.SystemRandom().getrandbits(48))


def _play(seed: int) -> None:
    world = World(seed)
    try:
        for _ in range(world.luck.randint(5, 120)):
            world.turn()
        lost_to_nobody = max([0, *world.committed])
        for _ in range(5000):
            if world.ended:
                break
            world.turn(calm=True)
        assert world.ended, "it does not end though nothing bad happens any more"
        state = replay(world.journal)
        assert state is not None
        assert state == world.truth
        resumed = [event.attempt for event in world.journal if isinstance(event, NewerSetAside)]
        for first, following in pairwise([0, *resumed, len(state.attempts) + 1]):
            mine = [attempt for attempt in state.attempts if first <= attempt.number < following]
            steps = [attempt.from_step for attempt in mine if attempt.submitted_at is not None]
            assert steps == sorted(steps), "an attempt began before a step that an earlier one had begun from"
        assert state.checkpoint is None or state.checkpoint.step in world.committed
        assert resumed or max([0, *world.committed]) >= lost_to_nobody
        for event in world.journal:
            assert event_from_dict(event_to_dict(event)) == event
            assert evolve(state, event) == state or type(event).__name__ in ("OwnerChanged",)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}\n" + "\n".join(map(str, world.journal))) from error
