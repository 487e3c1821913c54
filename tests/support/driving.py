"""A controller at work beside a test, and conditions to wait for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.host import processes
from airflow_elastic.adapters.records.job_files import JobFiles
from airflow_elastic.adapters.records.rank_progress import gather_files
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import Controller, Run, start_run
from airflow_elastic.control.observer import Observer
from airflow_elastic.core.event_sentences import waiting
from airflow_elastic.core.state import RunState
from airflow_elastic.engines import Job, find_engine
from airflow_elastic.engines.local.engine import job_files, state_folder
from airflow_elastic.runtime.forks.server import WAITING
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import ElasticError
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
from airflow_elastic.spec.status import JobStatus, Stretch
from airflow_elastic.testing.fake_engine import FakeEngine
from airflow_elastic.testing.processes import has_environment, read
from tests.support.builders import spec
from tests.support.machine.patience import PATIENCE_SECONDS

SCRIPTS = Path(__file__).parent / "scripts"


def training(*arguments: str, **changes: Any) -> RunSpec:
    """A run of scripts/train.py: 2 workers, a checkpoint every 5 steps."""
    defaults: dict[str, Any] = {
        "command": (str(SCRIPTS / "train.py"), *arguments),
        "workers": Workers(2, min=1, max=4),
        "checkpoint": CheckpointPolicy(every_steps=5),
        "restart": RestartPolicy(backoff_limit=100, backoff_seconds=0.1),
    }
    return RunSpec(**{**defaults, **changes})


def plain(folder: Path, *words: str, ranks: int = 2, script: str = "train.py") -> str:
    """The state that ranks have at the end when nothing happens, as a digest: from plain torchrun, without us."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
    ]
    command += [str(SCRIPTS / script), *words, f"--out={folder}/out"]
    subprocess.run(command, check=True, timeout=PATIENCE_SECONDS, capture_output=True)
    return (folder / "out").read_text()


class Driven:
    """A run that is being driven, and what a test may do to it."""

    def __init__(self, run: Run, task: asyncio.Task[RunState]) -> None:
        self.run, self.task = run, task

    @property
    def state(self) -> RunState:
        return self.run.state

    @property
    def files(self) -> JobFiles:
        return job_files(_job(self.run.store.uri, self.state))

    @property
    def step(self) -> int:
        state = self.state
        progress = self.run.progress(state)
        return progress.step if progress and progress.attempt == state.attempt.number else 0

    @property
    def step_now(self) -> int:
        """As the ranks' own pages say, and not as is reported once a second. Only of the local engine.

        An attempt in a job that goes on has begun before its ranks have: until then the pages are the last one's.
        """
        record = self.files.record
        progress = gather_files(self.files, record) if record else None
        return progress.step if progress and progress.attempt == self.state.attempt.number else 0

    async def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Wait for a condition; a run that ends meanwhile will not fulfil it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (answer := holds()):
            over = self.task.done()
            if over and not (answer := holds()):
                raise AssertionError(f"the run ended before {what}: {self.task.result().reason}")
            assert time.monotonic() < deadline, f"{what} did not come; {self.state}"
            await asyncio.sleep(0.01)
        return answer

    async def at_step(self, step: int) -> None:
        await self.until(lambda: self.step >= step, f"step {step}")

    async def gone_on(self) -> int:
        """Wait until the ranks of this attempt have done a step of their own; returns the step they went on from."""

        def stretch() -> Stretch | None:
            told = self.run.progress(self.state)
            mine = told.stretches if told and told.attempt == self.state.attempt.number else ()
            return mine[0] if mine and mine[0].to_step > mine[0].from_step else None

        began: Stretch = await self.until(stretch, "steps of this attempt")
        return began.from_step

    async def killed_at_random(self, kills: int, luck: random.Random, workers: int = 2) -> None:
        """Kill so many times, in the first 80 steps: a worker, a rank, nodes, each followed by another attempt."""
        for number in range(1, kills + 1):
            # Of 120: a test that is slow to look, on a busy machine, still finds it training.
            wanted = luck.randint(1, 80 * number // kills)
            await self.until(
                lambda n=number, w=wanted: len(self.state.attempts) == n and self.step_now >= w,  # type: ignore[misc]
                f"step {wanted} of attempt {number}",
            )
            place = luck.randrange(workers)
            luck.choice(
                (
                    lambda: self.kill_worker(place),  # noqa: B023
                    lambda: self.kill_rank(place),  # noqa: B023
                    lambda: self.kill_nodes(place),  # noqa: B023
                    lambda: self.kill_nodes(*range(workers)),
                )
            )()
            await self.until(lambda n=number: len(self.state.attempts) > n, f"attempt {number + 1}")  # type: ignore[misc]

    async def scaled(self, workers: int) -> None:
        """Ask for so many workers, and wait until as many ranks train."""
        self.run.ask_scale(workers, by="test")
        await self.until(
            lambda: (told := self.run.progress(self.state)) and told.world_size == workers,
            f"{workers} ranks",
        )

    async def end(self) -> RunState:
        return await asyncio.wait_for(asyncio.shield(self.task), PATIENCE_SECONDS)

    def node_at(self, place: int) -> int:
        """The number of the worker that has this place now: another one may have come for a lost one."""
        members = self.files.newest_members()
        assert members is not None
        return members.nodes[place]

    def kill_worker(self, place: int) -> None:
        """Lose a node: its agent dies at once, and with it (a moment later) its ranks."""
        agent = self.files.agent(self.node_at(place))
        assert agent is not None
        os.kill(agent.pid, signal.SIGKILL)

    def kill_node(self, place: int) -> None:
        """Lose a node with all that is on it at the same moment."""
        self.kill_nodes(place)

    def kill_nodes(self, *places: int) -> None:
        """The same of several."""
        all_of_it = [process for place in places for process in self.ranks_of(self.node_at(place))]
        for place in places:
            self.kill_worker(place)
        for process in all_of_it:
            process.send(signal.SIGKILL)

    def ranks_of(self, index: int) -> list[processes.Process]:
        """What the agent of a worker has started."""
        mark = f"AIRFLOW_ELASTIC_WORKER=node-{index}"
        return [process for process in self._processes() if has_environment(process.pid, mark)]

    def kill_rank(self, rank: int) -> None:
        """Kill one training process; its agent stays and tells."""
        found = processes.called(self._processes(), f"rank-{rank}")
        assert found, f"there is no rank {rank}"
        for process in found:
            process.send(signal.SIGKILL)

    def called(self, name: str) -> list[processes.Process]:
        """The processes of this attempt with this name, such as `rank-0`."""
        return processes.called(self._processes(), name)

    async def gone_on_in(self, attempt: int) -> None:
        """Wait until the ranks of this attempt have done a step."""
        await self.until(lambda: len(self.state.attempts) >= attempt, f"attempt {attempt}")
        await self.gone_on()

    def kill_agent_of(self, rank: int) -> None:
        """Lose a worker that is a pod: its first process dies."""
        (process,) = processes.called(self._processes(), f"rank-{rank}")
        agent = read(process.pid)
        assert agent is not None
        os.kill(agent.parent, signal.SIGKILL)

    def fork_servers(self) -> int:
        """How many processes have imported what ranks need, and can be forked."""
        return len(processes.called(self._processes(), WAITING))

    def _processes(self) -> list[processes.Process]:
        """What agents have started in this attempt: ranks, what these have started, and fork servers."""
        return processes.marked("AIRFLOW_ELASTIC_JOB", self.state.attempt.job or "")


@contextlib.asynccontextmanager
async def driving(uri: Path | str, spec: RunSpec, **options: Any) -> AsyncIterator[Driven]:
    """Start a run and drive it; at the end nothing of it may be left, whatever the test did."""
    store, engine = open_store(str(uri)), find_engine(spec.engine)
    run = start_run(store, spec, engine=engine)
    task = asyncio.create_task(Controller(store, engine, **{"poll_seconds": 0.1, **options}).drive())
    try:
        yield Driven(run, task)
    finally:
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            job = _job(store.uri, run.state)
            await engine.delete(job, 0.0)
            await engine.close(job)


def _job(uri: str, state: RunState) -> Job:
    return Job(uri, state.spec, state.attempt.home or state.attempt.number, state.attempt.workers)


def left_over(uri: Path | str) -> list[processes.Process]:
    """What is left on this machine of a run."""
    return processes.marked("AIRFLOW_ELASTIC_LOCAL_RUN", str(state_folder(str(uri))))


class Listener(Observer):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.troubles: list[tuple[str, int, float]] = []
        self.told: list[str | None] = []
        self.looks = 0

    def on_waiting(self, state: RunState, job: JobStatus) -> None:
        self.told.append(waiting(state, job))

    def on_trouble(self, error: ElasticError, times: int, pause: float) -> None:
        self.troubles.append((str(error), times, pause))

    async def on_look(self, state: RunState, progress: Any) -> None:
        self.looks += 1


@contextlib.asynccontextmanager
async def controlled(
    folder: Path, engine: FakeEngine, observer: Observer, **changes: Any
) -> AsyncIterator[Run]:
    """A run with a controller at work."""
    run = start_run(open_store(str(folder)), spec(**changes), engine=engine)
    driving = asyncio.create_task(Controller(run.store, engine, observer=observer, poll_seconds=0.02).drive())
    try:
        yield run
        assert not driving.done() or driving.result()
    finally:
        driving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await driving
