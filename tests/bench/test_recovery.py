"""From the death of a worker to the next attempt, and to the first new optimizer step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.bench.support.recovery import (
    KINDS,
    STAGES,
    Kill,
    recoveries,
    torchrun_restarts,
    with_and_without_train,
)


def tell(kills: list[Kill], floors: list[float]) -> None:
    print("  from the kill to the next attempt being submitted")
    for kind, text in KINDS.items():
        print(f"    {text:32}{spread([k.submitted_after for k in kills if k.kind == kind])}")
    verdict("median of all kills", median([k.submitted_after for k in kills]), 0.3, " s")
    print("  from the kill to the first new step")
    for kind, text in KINDS.items():
        print(f"    {text:32}{spread([k.stepping_after for k in kills if k.kind == kind])}")
    print(f"    {'floor: start, import, load':32}{spread(floors)}")
    ratio = median([k.stepping_after for k in kills]) / median(floors)
    verdict("median / median of the floor", ratio, 1.3)
    quick = [sorted(values)[len(values) // 4] for values in ([k.stepping_after for k in kills], floors)]
    print(
        f"    the same at the quickest quarter: {quick[0]:.3f} s, {quick[1]:.3f} s, {quick[0] / quick[1]:.2f}"
    )
    came = sum(k.first_step_at is not None for k in kills)
    print(f"  came up in {came} of {len(kills)} kills")
    print("  where the time goes (medians, ms)        node lost   rank killed   within 2 s")
    for stage, _ in STAGES:
        columns = [median([k.stages()[stage] for k in kills if k.kind == kind]) * 1000 for kind in KINDS]
        print(f"    {stage:34}{columns[0]:12.0f}{columns[1]:14.0f}{columns[2]:13.0f}", flush=True)


@pytest.mark.bench
@pytest.mark.timeout(7200)
async def test_kills(tmp_path: Path) -> None:
    kills = count("KILLS", 100)
    heading(f"kill -9 of a worker, {kills} times: 2 workers of 1 rank, torchrun launcher")
    tell(*await recoveries(tmp_path / "ours", kills, count("FLOORS", 15)))
    plain = torchrun_restarts(tmp_path / "torchrun", count("TORCHRUN", 5))
    up = [seconds for seconds in plain if seconds is not None]
    print(
        f"  plain torchrun, one rank killed, restarted in place: came up in {len(up)} of {len(plain)} within 30 s"
    )
    print(f"    to the first new step, without a checkpoint {spread(up) if up else 'never'}", flush=True)


@pytest.mark.bench
@pytest.mark.timeout(7200)
async def test_ranks_that_stay(tmp_path: Path) -> None:
    rounds = count("ROUNDS", 5)
    heading(f"kill -9 of one rank, {rounds} times with run.train and without it: 2 workers of 1 rank")
    # Also with `run.train`, the process of the killed rank is a new one, which the others wait for.
    kills, floors = await with_and_without_train(tmp_path, rounds)
    print(f"    {'floor: start, import, load':32}{spread(floors)}")
    for stay, text, goal in ((False, "without run.train", 0.15), (True, "with run.train", 0.1)):
        after = [kill.stepping_after for kill in kills[stay]]
        print(f"    {text:32}{spread(after)}")
        verdict(f"{text}, over the floor", median(after) / median(floors), goal)
    print("  where the time goes (medians, ms)         without          with")
    for stage, _ in STAGES:
        columns = [median([kill.stages()[stage] for kill in kills[stay]]) * 1000 for stay in kills]
        print(f"    {stage:34}{columns[0]:12.0f}{columns[1]:14.0f}", flush=True)


@pytest.mark.slow
async def test_a_kill_of_each_kind_is_measured(tmp_path: Path) -> None:
    kills, floors = await recoveries(tmp_path, 3, 1)
    assert [kill.kind for kill in kills] == [*KINDS]
    assert all(0 < kill.submitted_after < kill.stepping_after for kill in kills)
    assert all(sum(kill.stages().values()) > 0 for kill in kills)
    assert len(floors) == 1
