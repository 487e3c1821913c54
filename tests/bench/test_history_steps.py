"""What the history costs real steps of 10 ms: the same training with and without it, in turns.

Both train at the same time; while one goes on, all processes of the other stand still. So what else the machine does
hits both alike. A pair is a turn of each, and its difference is one figure.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bench.support.figures import count, heading, interval, spread, verdict
from tests.bench.test_overhead import PROCS, Arm, calibrated, mean_step, training, used

ROOT = Path(__file__).parents[2]
WITHOUT = Path(__file__).parent / "scripts/no_history"

#: A turn is longer than the pause between two writes of the history and two measurements of a worker, of 10 s each.
PAIRS, SECONDS = count("HISTORY_PAIRS", 12), count("HISTORY_SECONDS", 12)


def paired(folder: Path, pairs: int, seconds: float) -> dict[str, Arm]:
    """One training with and one without, side by side."""
    work = calibrated()
    with ExitStack() as stack:
        arms = {}
        for name in ("with", "without"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PYTHONPATH", f"{WITHOUT}:{ROOT}" if name == "without" else str(ROOT))
                arms[name] = stack.enter_context(training("ours", folder / name, work))
        before = {name: used(arm.processes) for name, arm in arms.items()}
        for number in range(pairs):
            for name in [*arms][:: 1 if number % 2 == 0 else -1]:
                arms[name].turn(seconds)
        for name, arm in arms.items():
            arm.beside = (used(arm.processes) - before[name]) / (pairs * seconds)
        kept = {name: len(list((folder / name / "run/history").rglob("recent-*"))) for name in arms}
    assert kept["with"], "no history was written: the figures say nothing"
    assert not kept["without"], "a history was written: the figures say nothing"
    return arms


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_steps_with_and_without(tmp_path: Path) -> None:
    heading(f"history: {PAIRS} pairs of turns of {SECONDS} s, 1 worker of {PROCS} ranks, steps of 10 ms")
    arms = paired(tmp_path, PAIRS, SECONDS)
    turns = {name: arm.turns() for name, arm in arms.items()}
    for name, found in turns.items():
        print(
            f"  {name:8} {sum(t.steps for t in found)} steps, {spread([t.wall for t in found], 'ms', 1000)}"
        )
    for what, text in (("wall", "step time"), ("rank", "processor time of a rank's step")):
        shares = [
            (getattr(one, what) / getattr(other, what) - 1) * 100
            for one, other in zip(turns["with"], turns["without"], strict=False)
        ]
        print(
            f"  {text}, with over without: median {statistics.median(shares):+.2f} % {interval(shares, '%')}"
        )
    share = (mean_step(turns["with"], "wall") / mean_step(turns["without"], "wall") - 1) * 100
    print(f"  of all steps but the extreme tenths: {share:+.2f} %")
    beside = {name: 100 * arm.beside for name, arm in arms.items()}
    print(
        f"  processor time beside the ranks: {beside['with']:.2f} % of one processor; without {beside['without']:.2f}"
    )
    verdict("processor time of the history", beside["with"] - beside["without"], 0.2, " %")


@pytest.mark.slow
def test_only_one_of_them_keeps_a_history(tmp_path: Path) -> None:
    arms = paired(tmp_path, 1, 12.0)
    assert all(arm.turns() for arm in arms.values())
