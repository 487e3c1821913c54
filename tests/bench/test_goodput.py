"""Goodput of a training whose ranks are killed again and again: ours, torchrun's and DLRover's, in turns.

One worker of two ranks each, on one schedule. The death of an agent ends a job of torchrun, and of `dlrover-run`
without a cluster that makes another pod: only ours is measured with it, by the same schedule.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.bench.support.figures import count, heading, spread
from tests.bench.support.goodput import (
    Figures,
    Step,
    Stretch,
    counted,
    figures,
    judged,
    parse,
    schedule,
    together,
)
from tests.bench.support.goodput_jobs import (
    DLROVER,
    MEMORY_STEPS,
    OURS,
    OURS_AGENTS,
    TORCHRUN,
    WORLD,
    System,
    begun,
    has_dlrover,
    measured,
)
from tests.support.machine.patience import until

GOAL = 0.97

#: After so long without a step a job is started again, as somebody would.
PATIENCE_SECONDS = 60.0


@pytest.mark.bench
@pytest.mark.timeout(4 * 3600)
@pytest.mark.real_start
def test_goodput(tmp_path: Path) -> None:
    every, minutes = count("EVERY_SECONDS", 60), count("MINUTES", 2)
    seed = count("SEED", 1)
    kills = max(1, round(60 * minutes / every))
    turns = max(1, min(count("TURNS", 5), kills))
    systems = [OURS, TORCHRUN, *([DLROVER] if has_dlrover() else []), OURS_AGENTS]
    heading(f"goodput: a kill every {every} s, {turns} turns of {kills // turns} kills, seed {seed}")
    if not has_dlrover():
        print("  without DLRover: `scripts/setup goodput` makes .goodput, which has it")
    found: dict[str, list[tuple[Stretch, Figures]]] = {system.name: [] for system in systems}
    for number, moments in enumerate(schedule(seed, turns, kills // turns, every)):
        first = number % len(systems)
        for system in systems[first:] + systems[:first]:
            folder = tmp_path / f"{number}-{systems.index(system)}"
            luck = random.Random(f"{seed}-{number}")  # the same ranks for all
            found[system.name].append(measured(system, folder, moments, every, luck, PATIENCE_SECONDS))
    for name, parts in found.items():
        whole, again = together(parts), sum(len(stretch.again) for stretch, _ in parts)
        print(f"  {name:20} goodput {whole.goodput:.2%}, steps lost {whole.lost:g}")
        print(
            f"  {'':20} recoveries that failed {whole.failed} of {turns * (kills // turns)}, started again {again}"
        )
        if whole.back:
            print(f"  {'':20} kill to first new step {spread(whole.back)}")
    goodput = {system.name: together(found[system.name]).goodput for system in systems}
    others = {system.name: goodput[system.name] for system in systems if system.how != "ours"}
    missing = [system.name for system in (TORCHRUN, DLROVER) if system.name not in others]
    for system in (OURS, OURS_AGENTS):
        said = judged(goodput[system.name], others, GOAL, missing)
        print(f"  goal: {system.name} >= {GOAL:.0%} and ahead of the others: {said}", flush=True)


@pytest.mark.slow
@pytest.mark.real_start
@pytest.mark.parametrize(
    "system",
    [
        pytest.param(OURS, id="ours"),
        pytest.param(TORCHRUN, id="torchrun"),
        pytest.param(
            DLROVER,
            id="dlrover",
            marks=pytest.mark.skipif(
                not has_dlrover(), reason="needs .goodput, which `scripts/setup goodput` makes"
            ),
        ),
    ],
)
def test_a_minute_with_two_kills_is_measured(tmp_path: Path, system: System) -> None:
    [moments] = schedule(1, 1, 2, 30.0)
    stretch, found = measured(system, tmp_path / "turn", moments, 30.0, random.Random(1), PATIENCE_SECONDS)
    assert len(stretch.kills) == 2
    assert len(found.back) + found.failed == 2
    assert 0 < found.goodput < 1
    if system is OURS:
        assert found.failed == 0
        assert found.lost <= 2 * (MEMORY_STEPS + 1)


@pytest.mark.real_start
def test_a_kill_is_recovered_from(tmp_path: Path) -> None:
    """The short form. It waits for the recovery as long as that takes."""
    with begun(OURS, tmp_path / "turn", every=30.0) as turn:
        before = {pid for pid, _, _ in turn.traces()}
        killed = turn.kill(random.Random(1))
        until(lambda: turn.stepped(killed) or turn.ended(), "a step of all ranks after the kill")
        stretch = Stretch(turn.began, time.time(), (killed,))
        found, after = figures(turn.steps(), stretch, WORLD), {pid for pid, _, _ in turn.traces()}
        said = (turn.folder / "log").read_text(errors="replace")[-5000:]
    assert len(after - before) == 1, f"one rank was killed, and one was started:\n{said}"
    assert (found.failed, len(found.back)) == (0, 1), said
    assert 0 < found.goodput < 1


def steps_of(rank: int, *numbers: int, at: float = 0.0) -> list[Step]:
    """Steps of a second, one after the other."""
    return [Step(rank, number, at + i, at + i + 1) for i, number in enumerate(numbers)]


def test_a_step_that_is_done_again_counts_once() -> None:
    steps = [*steps_of(0, 1, 2, 3, 4), *steps_of(0, 3, 4, 5, at=10)]
    assert [(one.number, one.began) for one in counted(steps)] == [(1, 0), (2, 1), (3, 10), (4, 11), (5, 12)]


def test_steps_of_a_rank_that_came_further_than_the_next_attempt_do_not_count() -> None:
    assert [one.number for one in counted([*steps_of(0, 1, 2, 3), *steps_of(0, 2, at=10)])] == [1, 2]


def test_ranks_count_by_themselves() -> None:
    assert len(counted([*steps_of(0, 1, 2), *steps_of(1, 1, 2)])) == 4


def test_a_turn_is_judged_by_its_steps() -> None:
    stretch = Stretch(1.0, 11.0, kills=(4.5,))
    before = [step for rank in (0, 1) for step in steps_of(rank, 1, 2, 3, 4)]
    after = [step for rank in (0, 1) for step in steps_of(rank, 4, 5, 6, at=8 + rank / 10)]
    found = figures([*before, Step(0, 5, 4.0, 5.0), *after], stretch, world=2)
    # Steps 2, 3, and the second 4 and 5 of both ranks; rank 0's 6, as rank 1's ended too late.
    assert found.goodput == pytest.approx(9 / 20)
    assert found.lost == 1.5
    assert found.back == pytest.approx((9.1 - 4.5,))
    assert found.failed == 0


def test_a_step_that_one_rank_does_alone_is_no_recovery() -> None:
    found = figures(steps_of(0, 1, 2, at=5), Stretch(0.0, 10.0, kills=(4.0,)), world=2)
    assert (found.back, found.failed) == ((), 1)


@pytest.mark.parametrize("stretch", [Stretch(0, 20, (4, 8)), Stretch(0, 20, (4,), again=(8,))])
def test_a_recovery_has_failed_if_steps_come_after_the_next_kill_or_start(stretch: Stretch) -> None:
    steps = [step for rank in (0, 1) for step in steps_of(rank, 1, 2, at=9)]
    assert figures(steps, stretch, world=2).failed == 1


def test_turns_are_weighed_by_their_length() -> None:
    parts = [(Stretch(0, 10), Figures(0.9, 1, (1.0,), 0)), (Stretch(0, 30), Figures(0.5, 2, (), 1))]
    assert together(parts) == Figures(pytest.approx(0.6), 3, (1.0,), 1)


def test_a_line_that_is_cut_off_is_left_out() -> None:
    assert parse(1, ["7 1.5 2.5\n", "8 2.5 3"]) == [Step(1, 7, 1.5, 2.5)]


def test_the_schedule_is_the_seeds() -> None:
    assert schedule(1, 2, 3, 120.0) == schedule(1, 2, 3, 120.0) != schedule(2, 2, 3, 120.0)
    assert all(12 <= at - 120 * n <= 60 for turn in schedule(1, 2, 3, 120.0) for n, at in enumerate(turn))


@pytest.mark.parametrize(
    ("goodput", "best", "missing", "verdict"),
    [
        (0.98, 0.975, (), "kept"),
        (0.98, 0.975, ("dlrover-run",), "NOT DECIDED, as dlrover-run was not measured"),
        (0.96, 0.95, (), "MISSED"),
        (0.975, 0.975, (), "MISSED"),
        (0.96, 0.95, ("dlrover-run",), "MISSED"),
    ],
)
def test_what_was_not_measured_is_not_beaten(
    goodput: float, best: float, missing: tuple[str, ...], verdict: str
) -> None:
    said = judged(goodput, {"torchrun": best, "slow": 0.5}, 0.97, missing)
    assert said.endswith(f": {verdict}")
    assert f"the best other is torchrun with {best:.2%}" in said
