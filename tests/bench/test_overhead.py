"""What runtime, agent and controller cost while nothing fails: against the same script under plain torchrun."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_elastic.adapters.stores import open_store
from airflow_elastic.control import Controller, start_run
from airflow_elastic.engines import find_engine
from airflow_elastic.spec.run import CheckpointPolicy, RunSpec, Workers
from tests.bench.figures import count, heading, median, spread, verdict

SCRIPT = Path(__file__).parent / "scripts/pace.py"
PROCS = 2
STEP_SECONDS = 0.010
POLL_SECONDS = 2.0  # the operator's default


@dataclass
class Pace:
    """One training: its step times as rank 0 saw them, and processor time of rank 0 and its agent, a step."""

    steps: list[float]
    rank: float
    agent: float
    controller: float = 0.0

    @classmethod
    def read(cls, path: Path) -> Pace:
        kept = json.loads(path.read_text())
        steps = [after - before for before, after in itertools.pairwise(kept["ends"])]
        return cls(steps, kept["rank"] / len(steps), kept["agent"] / len(steps))

    @property
    def median(self) -> float:
        return statistics.median(self.steps)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.steps)


class Contest:
    """The same script, driven by us and by torchrun: as many ranks on one worker, as many threads each."""

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._steps, self._number = folder, steps, 0
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(SCRIPT), "--calibrate", str(STEP_SECONDS)]
        self._work = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    def _arguments(self) -> tuple[Path, list[str]]:
        self._number += 1
        out = self._folder / f"{self._number}.json"
        return out, ["--steps", str(self._steps), "--work", self._work, "--out", str(out)]

    def plain(self) -> Pace:
        out, arguments = self._arguments()
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={PROCS}",
        ]
        subprocess.run(
            [*torchrun, str(SCRIPT), "--plain", *arguments],
            env=self._environment,
            check=True,
            capture_output=True,
        )
        return Pace.read(out)

    def ours(self) -> Pace:
        out, arguments = self._arguments()
        spec = RunSpec(
            command=(str(SCRIPT), *arguments),
            workers=Workers(1, procs=PROCS),
            checkpoint=CheckpointPolicy(every_seconds=3600.0),
            env={"OMP_NUM_THREADS": "1"},
        )
        store, engine = open_store(str(out.with_suffix(""))), find_engine("local")
        start_run(store, spec, engine=engine)
        before = time.process_time()
        state = asyncio.run(Controller(store, engine, poll_seconds=POLL_SECONDS).drive())
        used = time.process_time() - before
        assert (state.outcome, len(state.attempts)) == ("succeeded", 1), state.reason
        pace = Pace.read(out)
        pace.controller = used / len(pace.steps)  # start and end of the run included
        return pace


def tell(plain: list[Pace], ours: list[Pace]) -> None:
    print(f"  step under torchrun  {spread([p.median for p in plain], 'ms', 1000)}")
    print(f"  step under ours      {spread([p.median for p in ours], 'ms', 1000)}")
    for what in ("median", "mean"):
        theirs, mine = ([getattr(pace, what) for pace in paces] for paces in (plain, ours))
        ratios = [(b / a - 1) * 100 for a, b in zip(theirs, mine, strict=True)]
        noise = [abs(b / a - 1) * 100 for a, b in itertools.pairwise(theirs)]
        print(f"  {what} step, ours over torchrun's, by pair:       {spread(ratios, '%')}")
        print(f"  {what} step, torchrun over its own last (noise):  {spread(noise, '%')}")
    for what, text in (("median", "median step"), ("mean", "all steps together")):
        theirs, mine = ([getattr(pace, what) for pace in paces] for paces in (plain, ours))
        verdict(f"{text}, ours over torchrun's", (median(mine) / median(theirs) - 1) * 100, 0.5, " %")
    print("  processor time of a step in ms (medians)      torchrun        ours")
    for what in ("rank", "agent", "controller"):
        theirs, mine = (median([getattr(p, what) * 1000 for p in paces]) for paces in (plain, ours))
        print(f"    {what:42}{theirs:10.3f}  {mine:10.3f}", flush=True)


def contest(folder: Path, pairs: int, steps: int) -> tuple[list[Pace], list[Pace]]:
    course = Contest(folder, steps)
    plain, ours = [], []
    for _ in range(pairs):
        plain.append(course.plain())
        ours.append(course.ours())
    return plain, ours


@pytest.mark.bench
@pytest.mark.timeout(7200)
def test_a_run_without_failures(tmp_path: Path) -> None:
    pairs, steps = count("PAIRS", 9), count("STEPS", 1000)
    heading(f"no failure: {pairs} pairs of {steps} steps of about 10 ms, 1 worker of {PROCS} ranks")
    tell(*contest(tmp_path, pairs, steps))


def test_both_sides_do_the_same_steps(tmp_path: Path) -> None:
    plain, ours = contest(tmp_path, 1, 100)
    assert len(plain[0].steps) == len(ours[0].steps) == 100
