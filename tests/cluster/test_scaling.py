"""Scale steps at any pace, on a real cluster: all end with the workers that were wanted, and nobody is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.spec.run import Health, RunSpec, Workers
from tests.cluster.kinds.test_training import training, world
from tests.support.driving import driving
from tests.support.kubernetes.cluster import on_engines_that_scale

#: Seconds from one wish to the next: all at once; faster than pods end; and such that each is done.
PACES = [0.0, 0.4, 2.0]


def scaled(engine: str, options: dict[str, Any]) -> RunSpec:
    """A run of 3 workers, with time for what is asked of it."""
    workers = Workers(3, min=1, max=3, resources={"memory": "3Gi"})
    words = ("--epochs=4000", "--step-seconds=0.05")
    return training(engine, options, *words, workers=workers, health=Health(grace_seconds=10.0))


async def at_pace(pace: float, folder: Path, spec: RunSpec) -> None:
    """Ask for other numbers of workers, one after the other: the run trains on in its first attempt."""
    async with driving(folder / "run", spec) as driven:
        await driven.until(lambda: world(driven) == 3, "3 ranks")
        await driven.at_step(5)
        for wanted in (1, 3, 2, 3, 1, 3):
            driven.run.ask_scale(wanted, by="test")
            await asyncio.sleep(pace)
        await driven.until(lambda: world(driven) == 3, "3 ranks again")
        await driven.at_step(driven.step + 5)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert [attempt.failure for attempt in state.attempts] == [None]
    assert (state.outcome, state.restarts_used) == ("stopped", 0)


@pytest.mark.slow  # the short form is the engines' own: test_scale_steps_at_any_pace
@pytest.mark.parametrize("pace", PACES)
@on_engines_that_scale
async def test_steps_at_any_pace_lose_nobody(
    engine_name: str, pace: float, shared_folder: Path, pod_options: dict[str, Any]
) -> None:
    await at_pace(pace, shared_folder, scaled(engine_name, pod_options))
