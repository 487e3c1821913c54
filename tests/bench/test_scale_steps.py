"""How long training stands while a worker is added in place: with imports, with forked ranks, with a standby worker."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records.rank_progress import gather_files
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.status import Stretch
from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.support.driving import driving, training

#: The ways, and what each run has in addition. Before ranks were forked, each new process imported torch itself.
WAYS: dict[str, dict[str, Any]] = {
    "each rank imports torch": {"launcher_options": {"start": "cold"}},
    "ranks are forked": {},
    "a worker stands by": {"workers": Workers(2, min=1, max=3, standby=1)},
}

#: Of the seconds that it takes without forks and without a standby worker.
GOAL = 0.25


async def stands(folder: Path, changes: dict[str, Any]) -> float:
    """Seconds from the last step of two ranks to the first step of three."""
    defaults = {"workers": Workers(2, min=1, max=3), "checkpoint": CheckpointPolicy(every_steps=50)}
    spec = training("--epochs=1000", "--step-seconds=0.02", **{**defaults, **changes})
    async with driving(folder / "run", spec) as driven:
        await driven.at_step(20)
        if spec.workers.standby:
            began = time.monotonic()
            await driven.until(
                lambda: driven.files.standby().nodes and time.monotonic() - began > 5,
                "a worker that stands by",
            )
        driven.run.ask_scale(3, by="the bench")
        record = driven.files.record
        assert record is not None

        def both() -> tuple[Stretch, ...] | None:
            found = gather_files(driven.files, record).stretches
            return found if len(found) == 2 and found[1].first_step_at else None

        before, after = await driven.until(both, "a step of three ranks")
        driven.run.ask_stop(by="the bench")
        await driven.end()
    return float(after.first_step_at - before.last_step_at)


@pytest.mark.bench
@pytest.mark.real_start
@pytest.mark.timeout(3600)
async def test_a_worker_is_added(tmp_path: Path) -> None:
    rounds = count("ROUNDS", 5)
    heading(f"a scale step from 2 to 3 workers in place, {rounds} rounds in turns")
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for position, (way, changes) in enumerate(WAYS.items()):
            took[way].append(await stands(tmp_path / f"{number}-{position}", changes))
    first = median(took["each rank imports torch"])
    for way, seconds in took.items():
        print(f"  {way:28}{spread(seconds)}; over the first {median(seconds) / first:.2f}")
    verdict("with a standby worker, over the first", median(took["a worker stands by"]) / first, GOAL)


@pytest.mark.slow
async def test_one_is_measured(tmp_path: Path) -> None:
    assert await stands(tmp_path, WAYS["a worker stands by"]) > 0
