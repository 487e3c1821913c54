"""The same training under three systems: its command, whom to kill, and what its ranks have left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from airflow_elastic.adapters.host import processes as linux
from airflow_elastic.adapters.records.job_files import JobFiles
from tests.bench.scripts.goodput import MEMORY_STEPS
from tests.bench.support.goodput import Figures, Step, Stretch, figures, parse

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests/bench/scripts/goodput.py"
WORLD = 2
MARK = "ELASTIC_BENCH_GOODPUT"
START_SECONDS = 120.0

#: More than a bench can use.
_RESTARTS = 10_000


@dataclass(frozen=True)
class System:
    """What trains, and what is killed of it.

    Attributes:
        name: for the report.
        how: the argument of the script.
        words: of the command, before the script. `{folder}` is that of the turn.
        kills: `rank` or `agent`.
        env: more environment variables.
    """

    name: str
    how: str
    words: tuple[str, ...]
    kills: str = "rank"
    env: tuple[tuple[str, str], ...] = ()


_OURS = (
    *("-m", "airflow_elastic.cli", "run", "--uri", "{folder}/run", "--backoff-limit", str(_RESTARTS)),
    *("--memory-every-steps", str(MEMORY_STEPS)),
)
_ONE_NODE = ("--standalone", "--nnodes=1", f"--nproc-per-node={WORLD}")

OURS = System("ours", "ours", (*_OURS, "--procs", str(WORLD), "--"))
#: Each rank has a worker of its own. What was in a lost one's memory is in the other's.
OURS_AGENTS = System(
    "ours, workers lost",
    "ours",
    (*_OURS, "--workers", str(WORLD), "--buddies", "--standby", "1", "--"),
    "agent",
)
TORCHRUN = System(
    "torchrun",
    "torchrun",
    ("-m", "torch.distributed.run", *_ONE_NODE, f"--max-restarts={_RESTARTS}"),
    # The store that torchrun shares by default keeps the addresses of the attempt before: gloo then meets nobody.
    env=(("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),),
)
DLROVER = System(
    "dlrover-run",
    "dlrover",
    ("-m", "dlrover.trainer.torch.main", *_ONE_NODE, f"--max-restarts={_RESTARTS}"),
)


def python() -> str:
    """The interpreter of all of them: with DLRover, where `scripts/setup goodput` has made it."""
    own = ROOT / ".goodput/bin/python"
    return str(own) if own.exists() else sys.executable


def has_dlrover() -> bool:
    return python() != sys.executable


def _flash_memory() -> set[Path]:
    """What DLRover keeps in memory; it stays when all of a job is killed."""
    return set(Path("/dev/shm").glob("standalone_*_ckpt_shm_*"))


@dataclass
class Turn:
    """A training in a folder, from its first step on."""

    system: System
    folder: Path
    every: float
    began: float = 0.0
    _process: subprocess.Popen[bytes] | None = None
    _others: set[Path] = field(default_factory=_flash_memory)

    def start(self) -> None:
        """Start it, for the first time or again."""
        words = [word.format(folder=self.folder) for word in self.system.words]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [python(), *words, str(SCRIPT), self.system.how, str(self.folder), str(self.every)],
                # One thread a rank: torchrun's own default, and what two processors have room for.
                env={
                    **os.environ,
                    **dict(self.system.env),
                    MARK: str(self.folder),
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": str(ROOT),
                },
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self) -> None:
        """Kill all of it."""
        deadline = time.monotonic() + 30
        while left := linux.marked(MARK, str(self.folder)):
            assert time.monotonic() < deadline, f"does not end: {left}"
            for one in left:
                one.send(signal.SIGKILL)
            time.sleep(0.05)
        if self._process is not None:
            self._process.wait()
        for path in _flash_memory() - self._others:
            path.unlink()

    def traces(self) -> list[tuple[int, int, Path]]:
        """Process id, rank and file of each start of a rank, oldest first."""
        found = sorted(self.folder.glob("trace/*-*-*"))
        return [(int(path.name.split("-")[1]), int(path.name.split("-")[2]), path) for path in found]

    def steps(self) -> list[Step]:
        return [
            step
            for _, rank, path in self.traces()
            for step in parse(rank, path.read_text().splitlines(keepends=True))
        ]

    def stepped(self, since: float) -> bool:
        """Whether all ranks have done a step that began after this moment."""
        ranks = set()
        for _, rank, path in self.traces():
            if path.stat().st_mtime >= since:
                lines = path.read_text().splitlines(keepends=True)[-1:]
                ranks |= {step.rank for step in parse(rank, lines) if step.began >= since}
        return len(ranks) == WORLD

    def ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def kill(self, luck: random.Random) -> float:
        """Kill -9 a rank or an agent; when. Where none lives, as in a recovery that fails, nothing is killed."""
        chosen, at = luck.random(), time.time()
        if pids := self._ranks() if self.system.kills == "rank" else self._agents():
            os.kill(pids[int(chosen * len(pids))], signal.SIGKILL)
        return at

    def _ranks(self) -> list[int]:
        newest = {rank: pid for pid, rank, _ in self.traces()}
        return [pid for _, pid in sorted(newest.items()) if linux.Process.of(pid)]

    def _agents(self) -> list[int]:
        """Of the workers that have ranks; not of one that stands by."""
        found = []
        for job in sorted(self.folder.glob("run/local/*/job.json")):
            files = JobFiles(job.parent)
            members = files.newest_members()
            agents = [files.agent(node) for node in (members.nodes if members else ())]
            found += [agent.pid for agent in agents if agent and agent.alive]
        return found


@contextmanager
def begun(system: System, folder: Path, every: float) -> Iterator[Turn]:
    """A training that has done its first step; all of it is gone afterwards."""
    folder.mkdir(parents=True)
    turn = Turn(system, folder, every)
    try:
        turn.start()
        deadline = time.monotonic() + START_SECONDS
        while not turn.stepped(0.0):
            said = (folder / "log").read_text(errors="replace")
            started = time.monotonic() < deadline and not turn.ended()
            assert started, f"{system.name} did not start:\n{said[-5000:]}"
            time.sleep(0.1)
        turn.began = time.time()
        yield turn
    finally:
        turn.end()


def measured(
    system: System, folder: Path, kills: list[float], every: float, luck: random.Random, patience: float
) -> tuple[Stretch, Figures]:
    """Train for a turn with a kill at these moments, in seconds from its first step: what came of it.

    A job is started again if it has ended, or has not stepped for `patience` seconds after a kill, as an operator or a
    scheduler above it would. So one failed recovery does not spoil the rest of the turn.
    """
    with begun(system, folder, every) as turn:
        killed, again, end = [], [], turn.began + len(kills) * every
        for number, moment in enumerate(kills):
            _sleep_until(turn.began + moment)
            killed.append(turn.kill(luck))
            late, limit = killed[-1] + patience, turn.began + (number + 1) * every
            while not turn.stepped(killed[-1]) and time.time() < limit:
                if turn.ended() or time.time() > late:
                    turn.end()
                    again.append(time.time())
                    turn.start()
                    late = time.time() + patience
                time.sleep(0.25)
        _sleep_until(end)
        stretch = Stretch(turn.began, end, tuple(killed), tuple(again))
        return stretch, figures(turn.steps(), stretch, WORLD)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))
