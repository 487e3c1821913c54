"""What runtime, agent and controller cost while nothing fails: against the same script under plain torchrun.

Both train at the same time and take turns: while one goes on, all processes of the others stand still. So what else the
machine does hits all of them alike. A second plain torchrun takes turns too: its difference from the first one is what
the measurement cannot tell from nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_elastic.adapters.host import processes as linux
from airflow_elastic.runtime.forks.server import WAITING
from tests.bench.support.figures import count, heading, interval, spread, verdict

SCRIPT = Path(__file__).parent / "scripts/pace.py"
PROCS = count(
    "PROCS", 2
)  # on a machine of 2 processors, 1 leaves one of them to what is no rank, as on nodes with GPUs
STEP_SECONDS = 0.010
WARM_STEPS = 50
STEP_BYTES = struct.calcsize("ddd")
TURN_SECONDS, SETTLE_SECONDS = 2.0, 0.2  # of each turn the first steps are left out: caches were another's
PATIENCE_SECONDS = 120.0
MARK = "BENCH_ARM"
PLAIN = ("torchrun", "torchrun again")
ARMS = (*PLAIN, "ours")


@dataclass
class Turn:
    """Mean wall and processor time of rank 0's steps within one turn; and how much of it was our `step`."""

    steps: int
    wall: float
    rank: float
    ours: float


@dataclass
class Arm:
    """One training, which can be made to stand still."""

    name: str
    out: Path
    mark: str
    spans: list[tuple[float, float]] = field(default_factory=list)
    beside: float = 0.0  # processor seconds of all that are no ranks, a second of training

    @property
    def processes(self) -> list[linux.Process]:
        """All that live: some are begun while it trains."""
        return linux.marked(MARK, self.mark)

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            process.send(number)

    def turn(self, seconds: float) -> None:
        began = time.monotonic()
        self.signal(signal.SIGCONT)
        time.sleep(seconds)
        self.signal(signal.SIGSTOP)
        self.spans.append((began + SETTLE_SECONDS, time.monotonic()))

    def turns(self) -> list[Turn]:
        """What rank 0 wrote, turn by turn."""
        data = self.out.read_bytes()
        steps = list(struct.iter_unpack("ddd", data[: len(data) // STEP_BYTES * STEP_BYTES]))
        found = []
        for low, high in self.spans:
            within = [step for step in steps if low <= step[0] <= high]
            if len(within) > 10:  # what has not reached the file yet is missing from the last turn
                number, (first, used, _), (last, more, _) = len(within) - 1, within[0], within[-1]
                ours = sum(spent for _, _, spent in within[1:]) / number
                found.append(Turn(number, (last - first) / number, (more - used) / number, ours))
        return found


def calibrated() -> str:
    command = [sys.executable, str(SCRIPT), "--calibrate", str(STEP_SECONDS)]
    done = subprocess.run(command, env=environment(""), stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def environment(mark: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", MARK: mark}


@contextmanager
def training(name: str, folder: Path, work: str) -> Iterator[Arm]:
    """A training that has warmed up and stands still; nothing of it is left at the end."""
    folder.mkdir(parents=True)
    mark, out = str(folder), folder / "steps"
    script = [str(SCRIPT), "--work", work, "--out", str(out)]
    if name == "ours":
        command = [sys.executable, "-m", "airflow_elastic.cli", "run", "--uri", str(folder / "run")]
        command += [
            "--procs",
            str(PROCS),
            "--env",
            "OMP_NUM_THREADS=1",
            "--every-seconds",
            "3600",
            "--",
            *script,
        ]
    else:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={PROCS}", *script, "--plain"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment(mark), stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not out.exists() or out.stat().st_size < WARM_STEPS * STEP_BYTES:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, f"{name} did not come up: {(folder / 'log').read_text()}"
            time.sleep(0.1)
        arm = Arm(name, out, mark)
        while name == "ours" and not linux.called(arm.processes, WAITING):
            assert time.monotonic() < deadline, f"no fork server: {(folder / 'log').read_text()}"
            time.sleep(0.1)
        arm.signal(signal.SIGSTOP)
        yield arm
    finally:
        while left := linux.marked(MARK, mark):
            for one in left:
                one.send(signal.SIGKILL)
            time.sleep(0.01)
        process.wait()


def used(processes: list[linux.Process]) -> float:
    """Processor seconds of those among these processes that are no ranks."""
    total = 0
    for process in processes:
        folder = Path(f"/proc/{process.pid}")
        with contextlib.suppress(OSError):  # it has ended
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if not is_rank(folder):
                total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def is_rank(folder: Path) -> bool:
    """Ours call themselves so; of torchrun's, the environment tells."""
    if (folder / "comm").read_text().startswith("rank-"):
        return True
    variables = (folder / "environ").read_bytes().split(b"\0")
    return b"pace.py" in (folder / "cmdline").read_bytes() and any(
        one.startswith(b"LOCAL_RANK=") for one in variables
    )


def take_turns(folder: Path, turns: int, seconds: float) -> dict[str, Arm]:
    """One training of each arm, side by side."""
    work = calibrated()
    with ExitStack() as stack:
        arms = {
            name: stack.enter_context(training(name, folder / name.replace(" ", "-"), work)) for name in ARMS
        }
        before = {name: used(arm.processes) for name, arm in arms.items()}
        for number in range(turns):
            order = ARMS if number % 2 == 0 else ARMS[::-1]
            for name in order:
                arms[name].turn(seconds)
        for name, arm in arms.items():
            arm.beside = (used(arm.processes) - before[name]) / (turns * seconds)
    return arms


def mean_step(turns: list[Turn], what: str) -> float:
    """Of all steps of a round's turns, but the tenth of the turns at either end: those met something else."""
    ordered = sorted(getattr(turn, what) for turn in turns)
    cut = len(ordered) // 10
    return statistics.mean(ordered[cut : len(ordered) - cut])


def tell(rounds: list[dict[str, Arm]]) -> None:
    turns = {name: [arms[name].turns() for arms in rounds] for name in ARMS}
    for name in ARMS:
        flat = [turn for each in turns[name] for turn in each]
        steps = sum(turn.steps for turn in flat)
        print(f"  {name:15} {steps} steps, {spread([turn.wall for turn in flat], 'ms', 1000)}")

    def ratios(name: str, what: str, *base: str) -> list[float]:
        """In percent, one of each round; several arms to compare with are taken together.

        Of a round, because trainings differ from start to start (where their memory lies, which processor is theirs),
        and its turns all tell of the same start: taken one by one they would seem to be certain of what is chance.
        """
        found = []
        for mine, *theirs in zip(turns[name], *(turns[one] for one in base), strict=True):
            other = statistics.mean(mean_step(each, what) for each in theirs)
            found.append((mean_step(mine, what) / other - 1) * 100)
        return found

    for what, text in (("wall", "step time"), ("rank", "processor time of a rank's step")):
        for name, base, over in (
            ("ours", PLAIN, "both torchruns"),
            ("torchrun again", PLAIN[:1], "torchrun, the noise"),
        ):
            found = ratios(name, what, *base)
            print(
                f"  {text}, {name} over {over}: median {statistics.median(found):+.2f} % {interval(found, '%')}"
            )
    for name in ("torchrun", "ours"):
        beside = [arms[name].beside for arms in rounds]
        print(f"  processor time beside the ranks, {name}: {spread(beside, '% of one core', 100)}")
    shares = [100 * mean_step(each, "ours") / mean_step(each, "wall") for each in turns["ours"]]
    print(f"  of a step, spent in run.step(): {spread(shares, '%')}")
    seen = statistics.median(ratios("ours", "wall", *PLAIN))
    verdict("step time, ours over torchrun", seen, 0.5, " %")


@pytest.mark.bench
@pytest.mark.timeout(7200)
def test_a_run_without_failures(tmp_path: Path) -> None:
    rounds, turns = count("ROUNDS", 7), count("TURNS", 16)
    heading(
        f"no failure: {rounds} rounds of {turns} turns of {TURN_SECONDS:g} s each, 1 worker of {PROCS} ranks"
    )
    tell([take_turns(tmp_path / str(number), turns, TURN_SECONDS) for number in range(rounds)])


@pytest.mark.slow
def test_all_arms_take_their_turns(tmp_path: Path) -> None:
    arms = take_turns(tmp_path, 2, 3.0)
    assert all(arms[name].turns() for name in ARMS)
    assert all(linux.marked(MARK, str(arm.out.parent)) == [] for arm in arms.values())
