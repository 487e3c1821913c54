"""From the death of a worker to the next attempt, and to the first new optimizer step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.bench.support.models import gpt
from tests.bench.support.recovery import (
    KINDS,
    MODEL,
    STAGES,
    Kill,
    recoveries,
    torchrun_restarts,
    with_and_without_train,
)

#: Seconds from the kill to the first new step, over the floor. The same with a standby worker and without.
GOALS = {"node": 0.25, "rank": 0.15, "early": 0.15}


def tell(kills: list[Kill], floors: list[float]) -> None:
    kinds = {kind: text for kind, text in KINDS.items() if any(kill.kind == kind for kill in kills)}
    print("  from the kill to the next attempt being submitted")
    for kind, text in kinds.items():
        print(f"    {text:32}{spread([k.submitted_after for k in kills if k.kind == kind])}")
    verdict("median of all kills", median([k.submitted_after for k in kills]), 0.3, " s")
    print("  from the kill to the first new step")
    after = {kind: [k.stepping_after for k in kills if k.kind == kind] for kind in kinds}
    for kind, text in kinds.items():
        print(f"    {text:32}{spread(after[kind])}")
    print(f"    {'floor: start, import, load':32}{spread(floors)}")
    for kind, text in kinds.items():
        verdict(f"{text}, over the floor", median(after[kind]) / median(floors), GOALS[kind])
    everything = [seconds for some in after.values() for seconds in some]
    quick = [sorted(values)[len(values) // 4] for values in (everything, floors)]
    print(f"    all at the quickest quarter: {quick[0]:.3f} s, {quick[1]:.3f} s, {quick[0] / quick[1]:.2f}")
    came = sum(k.first_step_at is not None for k in kills)
    print(f"  came up in {came} of {len(kills)} kills")
    heads = {"node": "node lost", "rank": "rank killed", "early": "within 2 s"}
    print(f"  {'where the time goes (medians, ms)':36}" + "".join(f"{heads[kind]:>13}" for kind in kinds))
    for stage, _ in STAGES:
        columns = [median([k.stages()[stage] for k in kills if k.kind == kind]) * 1000 for kind in kinds]
        print(f"    {stage:34}" + "".join(f"{column:13.0f}" for column in columns), flush=True)


@pytest.mark.bench
@pytest.mark.timeout(7200)
async def test_kills(tmp_path: Path) -> None:
    kills = count("KILLS", 100)
    heading(f"kill -9 of a worker, {kills} times: 2 workers of 1 rank, torchrun launcher, {MODEL}")
    tell(*await recoveries(tmp_path / "ours", kills, count("FLOORS", 15)))
    plain = torchrun_restarts(tmp_path / "torchrun", count("TORCHRUN", 5))
    up = [seconds for seconds in plain if seconds is not None]
    print(
        f"  plain torchrun, one rank killed, restarted in place: came up in {len(up)} of {len(plain)} within 30 s"
    )
    print(f"    to the first new step, without a checkpoint {spread(up) if up else 'never'}", flush=True)


@pytest.mark.bench
@pytest.mark.timeout(7200)
async def test_lost_workers_with_a_standby_worker(tmp_path: Path) -> None:
    kills = count("KILLS", 30)
    heading(f"kill -9 of an agent, {kills} times: 2 workers of 1 rank, and one that stands by, {MODEL}")
    tell(*await recoveries(tmp_path, kills, count("FLOORS", 7), kinds=["node"], standby=1))


@pytest.mark.bench
@pytest.mark.timeout(7200)
async def test_ranks_that_stay(tmp_path: Path) -> None:
    rounds = count("ROUNDS", 5)
    heading(
        f"kill -9 of one rank, {rounds} times with run.train and without it: 2 workers of 1 rank, {MODEL}"
    )
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


@pytest.mark.parametrize("parameters", [30_000_000, 350_000_000])
def test_a_gpt_is_about_as_large_as_asked_for(parameters: int) -> None:
    with torch.device("meta"):
        model = gpt(parameters, 1024)
    found = sum(one.numel() for one in model.parameters())
    assert found == pytest.approx(parameters, rel=0.2)
