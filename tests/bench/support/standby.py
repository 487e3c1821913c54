"""What a standby worker costs: processor time until it stands by and while it waits, and memory of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.host import processes as linux
from airflow_elastic.engines.local.engine import state_folder
from airflow_elastic.runtime.forks.server import WAITING
from airflow_elastic.spec.run import Workers
from airflow_elastic.testing.processes import has_environment
from tests.support.driving import driving, training

if TYPE_CHECKING:
    from airflow_elastic.adapters.records.job_files import JobFiles
    from tests.support.driving import Driven

#: Ready workers still start their threads.
SETTLE_SECONDS = 2.0

#: What a worker's processes import, in a process of its own.
_IMPORT = """
import json, os, time
from airflow_elastic.runtime.forks.prepare import prepare
assert prepare("airflow_elastic.runtime.agent.agent") is None
lines = [line.split() for line in open("/proc/self/smaps_rollup")]
private = sum(int(line[1]) << 10 for line in lines if line[0].startswith("Private_"))
print(json.dumps([time.process_time(), private]))
"""


@dataclass
class Cost:
    """What a run has used beside its ranks, and its standby worker of that.

    Attributes:
        until: processor seconds of each process of the standby worker until it stood by, by what the process is.
        waiting: processor seconds of them together, for each minute of waiting.
        private: bytes that each of them alone holds.
        beside_until: processor seconds of all processes that are no ranks, until the same moment.
        beside: processor seconds of them for each minute.
    """

    until: dict[str, float]
    waiting: float
    private: dict[str, int]
    beside_until: float
    beside: float


def processor_seconds(pid: int) -> float:
    """What a process has used so far, by its own clock; see clock_getcpuclockid(3)."""
    return time.clock_gettime((~pid << 3) | 2)


def private_bytes(pid: int) -> int:
    """The memory that a process shares with no other, in bytes."""
    lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line[1]) << 10 for line in lines if line[0].startswith("Private_"))


def processes_of(files: JobFiles, job: str, node: int) -> dict[str, linux.Process]:
    """A worker's agent, and the process that its ranks are forked from once that has its imports."""
    agent, found = files.agent(node), dict[str, linux.Process]()
    if agent is not None and agent.alive:
        found["agent"] = agent
    mark = f"AIRFLOW_ELASTIC_WORKER=node-{node}"
    for server in linux.called(linux.marked("AIRFLOW_ELASTIC_JOB", job), WAITING):
        if has_environment(server.pid, mark):
            found["fork server"] = server
    return found


def _beside_ranks(driven: Driven) -> float:
    """Processor seconds of the run's processes that are no ranks."""
    total = 0.0
    for process in linux.marked("AIRFLOW_ELASTIC_LOCAL_RUN", str(state_folder(driven.run.store.uri))):
        with contextlib.suppress(OSError):  # it has ended
            if not Path(f"/proc/{process.pid}/comm").read_text().startswith("rank-"):
                total += processor_seconds(process.pid)
    return total


async def cost(folder: Path, *, standby: int, cold: bool = False, seconds: float) -> Cost:
    """Train with two workers, and look for so many seconds at what is beside them."""
    options: dict[str, Any] = {"launcher_options": {"start": "cold"}} if cold else {}
    spec = training("--epochs=1000", "--step-seconds=0.02", workers=Workers(2, standby=standby), **options)
    async with driving(folder, spec) as driven:
        await driven.at_step(20)
        found: dict[str, linux.Process] = {}

        def stands_by() -> bool:
            for node in driven.files.standby().nodes:
                found.update(processes_of(driven.files, driven.state.attempt.job or "", node))
            return len(found) == standby * (1 if cold else 2)

        await driven.until(stands_by, "a worker that stands by")
        await asyncio.sleep(SETTLE_SECONDS)
        began, before = time.monotonic(), _beside_ranks(driven)
        used = {what: processor_seconds(process.pid) for what, process in found.items()}
        await asyncio.sleep(seconds)
        more = {what: processor_seconds(process.pid) for what, process in found.items()}
        minutes = (time.monotonic() - began) / 60
        done = Cost(
            until=used,
            waiting=(sum(more.values()) - sum(used.values())) / minutes,
            private={what: private_bytes(process.pid) for what, process in found.items()},
            beside_until=before,
            beside=(_beside_ranks(driven) - before) / minutes,
        )
        driven.run.ask_stop(by="the bench")
        await driven.end()
    return done


def import_cost() -> tuple[float, int]:
    """Processor seconds and private bytes of a plain process that imports the same."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _IMPORT]
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    seconds, private = json.loads(said)
    return seconds, private
