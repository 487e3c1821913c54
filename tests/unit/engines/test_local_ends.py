"""A worker of the local engine that has ended but for its logs: it holds up no decision, and its log is not cut."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_elastic.adapters.host.processes import Process
from airflow_elastic.adapters.records.job_files import JobFiles, Members, Result
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.local import LocalEngine
from airflow_elastic.engines.local import engine as module
from airflow_elastic.engines.local.watch import read
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.status import RankError, WorkerPhase
from tests.support.machine.patience import PATIENCE_SECONDS


@dataclass
class Agent:
    """A process that stands for an agent: it ends by itself when it is told to, or is killed."""

    process: subprocess.Popen[bytes]

    def finish(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE_SECONDS)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(str(tmp_path), RunSpec(command=("t.py",), launcher="python"), 1, 2)


@pytest.fixture
def files(job: Job) -> JobFiles:
    found = module.job_files(job)
    found.create("job.json", module._record(job))
    found.begin(Members(1, (0, 1), 1.0))
    return found


@pytest.fixture
def agents(files: JobFiles) -> Iterator[list[Agent]]:
    found = []
    for index in (0, 1):
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        files.create(f"node-{index}/agent.json", Process.of(process.pid))
        found.append(Agent(process))
    yield found
    for agent in found:
        agent.process.kill()
        agent.process.communicate()


def test_it_is_seen_as_it_ended(files: JobFiles, agents: list[Agent]) -> None:
    failed = Result("failed", 2.0, errors=(RankError(rank=0, exit_code=3, at=2.0),))
    files.write("node-0/result.json", failed)
    assert [worker.phase for worker in read(files).workers] == [WorkerPhase.RUNNING] * 2
    files.end(0)
    workers = read(files).workers
    assert [worker.phase for worker in workers] == [WorkerPhase.FAILED, WorkerPhase.RUNNING]
    assert workers[0].errors == failed.errors
    agents[0].finish()
    assert read(files).workers == workers


async def test_who_watches_hears_of_it_at_once(files: JobFiles, job: Job, agents: list[Agent]) -> None:
    seen = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for status in LocalEngine().watch(job):
            seen.append([worker.phase for worker in status.workers])
            index = len(seen) - 1
            if index < len(agents):
                files.write(f"node-{index}/result.json", Result("failed", 2.0))
                files.end(index)
    assert seen[-1] == [WorkerPhase.FAILED] * 2
    assert [agent.process.poll() for agent in agents] == [None, None]


@pytest.mark.parametrize("grace", [0.0, PATIENCE_SECONDS])
async def test_the_end_of_its_job_waits_for_its_log(
    files: JobFiles, job: Job, agents: list[Agent], grace: float
) -> None:
    files.write("node-0/result.json", Result("failed", 2.0))
    files.end(0)
    deleting = asyncio.create_task(LocalEngine().delete(job, grace))
    await asyncio.to_thread(agents[1].process.wait, PATIENCE_SECONDS)
    assert agents[1].process.returncode == (-15 if grace else -9)
    assert not (await asyncio.wait({deleting}, timeout=0.1))[0]
    await asyncio.to_thread(agents[0].finish)
    await asyncio.wait_for(deleting, PATIENCE_SECONDS)
    assert agents[0].process.returncode == 0


async def test_but_not_for_ever(
    files: JobFiles, job: Job, agents: list[Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOG_SECONDS", 0.01)
    files.end(0)
    waiting = [asyncio.to_thread(agent.process.wait, PATIENCE_SECONDS) for agent in agents]
    await asyncio.gather(LocalEngine().delete(job, 0.0), *waiting)
    assert [agent.process.returncode for agent in agents] == [-9, -9]
