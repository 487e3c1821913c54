"""Killing workers of a real run on the real local engine, and finding out when it was back, and where the time went."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.host import processes as linux
from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.job_files import JobFiles
from airflow_elastic.adapters.records.rank_progress import gather_files
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import Controller, Observer, start_run
from airflow_elastic.engines import Job, find_engine
from airflow_elastic.engines.local.engine import job_files
from airflow_elastic.runtime.forks.server import WAITING
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
from tests.bench.scripts.sizes import DEVICE, PARAMETERS
from tests.bench.support.figures import count
from tests.bench.support.standby import processes_of

SCRIPTS = Path(__file__).parents[1] / "scripts"
WORLD = 2
POLL_SECONDS = 2.0  # the operator's default
PATIENCE_SECONDS = 120.0

#: What the script trains, and how often it is saved.
MODEL = f"{PARAMETERS:,} parameters on {DEVICE}" if PARAMETERS else "8 MB"
EVERY_SECONDS = count("EVERY", 10 if PARAMETERS else 1)

#: What is killed, and when.
KINDS = {
    "node": "agent killed, its node is lost",
    "rank": "one rank killed",
    "early": "one rank killed within 2 s",
}

#: What happens between the kill and the first step, in this order; each is told by the end of it.
STAGES = (
    ("the controller knows", "WorkersEnded"),
    ("old attempt is gone", "AttemptGone"),
    ("next one submitted", "AttemptSubmitted"),
    ("agents forked", "agents"),
    ("agents have met", "met"),
    ("rank processes started", "rank started"),
    ("Python and rank.py started", "script reached"),
    ("torch imported", "torch imported"),
    ("the rest imported", "all imported"),
    ("ranks joined", "ranks joined"),
    ("model built, wrapped", "model built"),
    ("checkpoint restored", "restored"),
    ("first step done", "first step"),
)


@dataclass
class Kill:
    """One kill and what followed."""

    kind: str
    at: float
    moments: dict[str, float] = field(default_factory=dict)
    first_step_at: float | None = None

    @property
    def submitted_after(self) -> float:
        return self.moments["AttemptSubmitted"] - self.at

    @property
    def stepping_after(self) -> float:
        assert self.first_step_at is not None
        return self.first_step_at - self.at

    def stages(self) -> dict[str, float]:
        """Seconds of each stage; none where it was skipped, as a job is neither removed nor made where agents live on.

        An agent may be at work before its submission is in the journal.
        """
        spent, reached = {}, self.at
        for name, moment in STAGES:
            now = max(reached, self.moments.get(moment, reached))
            spent[name], reached = now - reached, now
        return spent


class Moments(Observer):
    """When each event was journaled, by attempt."""

    def __init__(self) -> None:
        self.at: dict[tuple[int, str], float] = {}

    def on_event(self, event: ev.Event, before: Any, state: Any) -> None:
        number = getattr(event, "attempt", None)
        if number is not None:
            self.at.setdefault((number, type(event).__name__), event.at)


class Recovery:
    """A run that trains without end while its workers are killed.

    Args:
        folder: for all of it.
        stay: whether its script calls `run.train`.
        standby: how many workers stand by.
    """

    def __init__(self, folder: Path, *, stay: bool = False, standby: int = 0) -> None:
        self.uri, self.marks = folder / "run", folder / "marks"
        self.marks.mkdir(parents=True)
        self.spec = RunSpec(
            command=(str(SCRIPTS / "recover.py"),),
            workers=Workers(WORLD, standby=standby),
            checkpoint=CheckpointPolicy(every_seconds=float(EVERY_SECONDS), keep_last=2),
            restart=RestartPolicy(backoff_limit=10_000),
            env={"BENCH_MARKS": str(self.marks), **({"BENCH_STAY": "1"} if stay else {})},
        )
        self.store, self.engine = open_store(str(self.uri)), find_engine("local")
        self.moments = Moments()
        self.attempt = 0
        self._luck = random.Random(1)

    async def __aenter__(self) -> Recovery:
        self.run = start_run(self.store, self.spec, engine=self.engine)
        controller = Controller(self.store, self.engine, observer=self.moments, poll_seconds=POLL_SECONDS)
        self.driving = asyncio.create_task(controller.drive())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.run.ask_stop(by="the bench")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.driving, PATIENCE_SECONDS)
        await self.engine.close(self._job())
        assert self.driving.done(), "the run did not stop"
        assert linux.marked("AIRFLOW_ELASTIC_LOCAL_RUN", f"{self.uri}/local") == [], (
            "something is left behind"
        )

    def _job(self) -> Job:
        attempts = self.run.state.attempts
        home = attempts[self.attempt - 1].home if len(attempts) >= self.attempt else None
        return Job(str(self.uri), self.spec, home or self.attempt, WORLD)

    async def up(self) -> dict[str, float]:
        """Wait until the next attempt steps; when its slowest rank came how far."""
        self.attempt += 1
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found := list(self.marks.glob(f"{self.attempt}-*.json"))) < WORLD:
            if self.driving.done():
                raise AssertionError(f"the run ended: {self.driving.result().reason}")
            assert time.monotonic() < deadline, f"attempt {self.attempt} did not come up"
            await asyncio.sleep(0.05)
        ranks = [json.loads(path.read_text()) for path in found]
        return {what: max(rank[what] for rank in ranks) for what in ranks[0]}

    async def checkpoint(self) -> None:
        """Wait for the first one."""
        while not checkpoints.steps(self.store):
            assert not self.driving.done()
            await asyncio.sleep(0.05)

    async def kill(self, kind: str) -> Kill:
        """Kill -9 an agent (its node is lost) or a rank alone; wait until training is back.

        At a random moment once it has trained for a while, as most do that fail, or at the beginning (`early`).
        """
        if kind != "early":
            await self._fork_servers()
        idle = await self._standby()
        await asyncio.sleep(self._luck.uniform(0.2, 1.5))
        files, index = job_files(self._job()), self._luck.randrange(WORLD)
        pid = self._agent_pid(index) if kind == "node" else self._rank_pid(index)
        before = self.attempt
        done = Kill(kind, time.time())
        os.kill(pid, signal.SIGKILL)
        try:
            done.moments |= await self.up()
        except AssertionError as error:
            print(f"  did not come up: {error}", flush=True)
            raise
        for number, what in (
            (before, "WorkersEnded"),
            (before, "AttemptGone"),
            (before + 1, "AttemptSubmitted"),
        ):
            if (number, what) in self.moments.at:
                done.moments[what] = self.moments.at[number, what]
        files = job_files(self._job())
        assert kind != "node" or {*idle} <= {*nodes_of(files)}, f"{idle} stood by, {nodes_of(files)} train"
        done.moments["agents"] = max(
            (files.node(node) / "agent.json").stat().st_mtime for node in nodes_of(files)
        )
        record = files.record
        assert record is not None
        while done.first_step_at is None:  # a rank says it in its page, just after what it has marked
            stretch = gather_files(files, record).stretches[-1]
            done.moments["met"], done.first_step_at = stretch.started_at, stretch.first_step_at
        return done

    async def _fork_servers(self) -> None:
        """Wait for the processes that the next ranks are forked from."""
        while len(linux.called(linux.marked("AIRFLOW_ELASTIC_JOB", self._job().name), WAITING)) < WORLD:
            assert not self.driving.done()
            await asyncio.sleep(0.2)

    async def _standby(self) -> tuple[int, ...]:
        """Wait until as many workers stand by as should, with all that they need; their numbers."""
        files, job = job_files(self._job()), self._job().name
        while True:
            ready = [node for node in files.standby().nodes if len(processes_of(files, job, node)) == 2]
            if len(ready) == self.spec.workers.standby:
                return tuple(ready)
            assert not self.driving.done()
            await asyncio.sleep(0.2)

    def _agent_pid(self, index: int) -> int:
        files = job_files(self._job())
        agent = files.agent(nodes_of(files)[index])
        assert agent is not None
        return agent.pid

    def _rank_pid(self, rank: int) -> int:
        path = next(self.marks.glob(f"{self.attempt}-*-{rank}.json"))
        return int(path.stem.split("-")[1])

    def floor(self) -> float:
        """Seconds that as many processes need to start, import and load, while training stands still."""
        mine = linux.marked("AIRFLOW_ELASTIC_JOB", self._job().name)
        for process in mine:
            process.send(signal.SIGSTOP)
        try:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            commands = [
                [sys.executable, str(SCRIPTS / "floor.py"), str(self.uri), str(rank), str(WORLD)]
                for rank in range(WORLD)
            ]
            began = time.time()
            processes = [
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
                for command in commands
            ]
            ends = [float(process.communicate(timeout=PATIENCE_SECONDS)[0]) for process in processes]
        finally:
            for process in mine:
                process.send(signal.SIGCONT)
        return max(ends) - began


def nodes_of(files: JobFiles) -> tuple[int, ...]:
    """The workers that are there, in the order of their ranks: others may have come in lost ones' places."""
    members = files.newest_members()
    assert members is not None
    return members.nodes


async def with_and_without_train(folder: Path, rounds: int) -> tuple[dict[bool, list[Kill]], list[float]]:
    """Kill one rank by turns, in a run with `run.train` (True) and in one without it, and measure the floor."""
    done: dict[bool, list[Kill]] = {False: [], True: []}
    floors: list[float] = []
    for _ in range(rounds):
        for stay, kills in done.items():
            async with Recovery(folder / f"{len(floors)}-{stay}", stay=stay) as recovery:
                await recovery.up()
                await recovery.checkpoint()
                kills.append(await recovery.kill("rank"))
                if stay:
                    floors.append(recovery.floor())
    return done, floors


async def recoveries(
    folder: Path, kills: int, floors: int, *, kinds: Sequence[str] = tuple(KINDS), standby: int = 0
) -> tuple[list[Kill], list[float]]:
    """Kill by turns, measuring the floor in between; raises where the run does not come up again."""
    done: list[Kill] = []
    measured: list[float] = []
    async with Recovery(folder, standby=standby) as recovery:
        await recovery.up()
        await recovery.checkpoint()
        for number in range(kills):
            if number * floors // kills >= len(measured):
                measured.append(recovery.floor())
            done.append(await recovery.kill(kinds[number % len(kinds)]))
    return done, measured


def torchrun_restarts(folder: Path, tries: int, patience: float = 30.0) -> list[float | None]:
    """The same script under plain torchrun, which restarts ranks in place: seconds from the kill of one to a step.

    It has no checkpoint to load. None where it did not come up in time.
    """
    found: list[float | None] = []
    for number in range(tries):
        marks = folder / str(number)
        marks.mkdir(parents=True)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=3"]
        with (folder / f"{number}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, f"--nproc-per-node={WORLD}", str(SCRIPTS / "recover.py")],
                env={**os.environ, "OMP_NUM_THREADS": "1", "BENCH_MARKS": str(marks)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            ranks = _stepping(marks, WORLD, PATIENCE_SECONDS)
            assert len(ranks) == WORLD, (folder / f"{number}.log").read_text()
            time.sleep(1.0)
            at = time.time()
            os.kill(int(ranks[-1].stem.split("-")[1]), signal.SIGKILL)
            fresh = set(_stepping(marks, 2 * WORLD, patience)) - set(ranks)
            up = len(fresh) == WORLD
            found.append(
                max(json.loads(path.read_text())["first step"] for path in fresh) - at if up else None
            )
        finally:
            for one in linux.marked("BENCH_MARKS", str(marks)):
                one.send(signal.SIGKILL)
            process.wait()
    return found


def _stepping(marks: Path, count: int, patience: float) -> list[Path]:
    """What ranks have written at their first steps, as soon as so many have, or after so long."""
    deadline = time.monotonic() + patience
    while len(found := sorted(marks.glob("*.json"))) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
