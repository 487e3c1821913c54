"""What many deferred runs cost their triggerer while they just go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_elastic.adapters.records.reports import write_progress
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.testing import processes
from airflow_elastic.testing.airflow_rest import poll
from airflow_elastic.testing.standalone import Standalone
from tests.bench.scripts.report import report
from tests.bench.support.figures import count, heading, spread

HERE = Path(__file__).parent
POLL_SECONDS = 2.0  # the operator's default


def controllers(folder: Path, runs: int, seconds: float) -> dict[str, float]:
    """Controllers alone in one process: processor seconds, those of the floor, and bytes that the process grew by."""
    command = [sys.executable, "-m", "tests.bench.scripts.controllers"]
    done = subprocess.run(
        [*command, str(folder), str(runs), str(seconds), str(POLL_SECONDS)],
        cwd=HERE.parents[1],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def used(pids: list[int]) -> float:
    """Processor seconds of these processes so far."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def resident(pids: list[int]) -> int:
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 for pid in pids)


@dataclass(frozen=True)
class Load:
    """What one part of Airflow used: processor seconds without and with the runs, and the bytes it grew by."""

    part: str
    idle: float
    busy: float
    grown: int


def deferred(home: Path, runs: int, seconds: float) -> list[Load]:
    """Have a real Airflow defer so many tasks, and look at its triggerer and at the API server that serves it."""
    with Standalone(home / "airflow", HERE / "dags", parallelism=4) as airflow:
        airflow.wait_for_dag("bench_deferred")
        defer(airflow, home / "first", 1)  # pays for what is imported and opened once
        time.sleep(15.0)
        api = airflow.part_pid("api-server")
        parts = {"triggerer": airflow.triggerer_pids(), "api-server": [api] if api else []}
        pids = {
            part: [process.pid for leader in leaders for process in processes.family(leader)]
            for part, leaders in parts.items()
        }
        began = {part: used(pids[part]) for part in pids}
        time.sleep(seconds)
        idle = {part: used(pids[part]) - began[part] for part in pids}
        before = {part: resident(pids[part]) for part in pids}
        defer(airflow, home / "runs", runs)
        time.sleep(15.0)
        began = {part: used(pids[part]) for part in pids}
        time.sleep(seconds)
        loads = [
            Load(part, idle[part], used(pids[part]) - began[part], resident(pids[part]) - before[part])
            for part in pids
        ]
        airflow.stop(detached=True)
        assert airflow.detached() == []
    return loads


def defer(airflow: Standalone, root: Path, runs: int) -> None:
    """Start so many runs, wait until all of them are deferred and driven, and give each of them a report."""
    airflow.trigger("bench_deferred", {"runs": runs, "root": str(root)})
    poll(
        f"{runs} runs to be driven",
        lambda: len(list(root.glob("*/journal/00000001.json"))) == runs or None,
        timeout=60.0 + 10.0 * runs,
    )
    for number in range(runs):
        write_progress(open_store(str(root / f"run-{number}")), report(1))


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_controllers_in_one_event_loop(tmp_path: Path) -> None:
    runs, seconds = count("RUNS", 200), 30.0
    heading(
        f"{runs} controllers in one event loop, fake engine, a look each {POLL_SECONDS:g} s, {seconds:g} s"
    )
    found = [controllers(tmp_path / str(number), runs, seconds) for number in range(5)]
    each = 60.0 / seconds / runs
    together = [f["used"] / seconds for f in found]
    print(
        f"  processor time a run and minute         {spread([f['used'] * each for f in found], 'ms', 1000)}"
    )
    print(
        f"  floor: only reading its report as often {spread([f['floor'] * each for f in found], 'ms', 1000)}"
    )
    print(f"  ratio to the floor                      {spread([f['used'] / f['floor'] for f in found], 'x')}")
    print(f"  all together                            {spread(together, '% of one core', 100)}")
    print(
        f"  memory a run                            {spread([f['grown'] / runs for f in found], 'KB', 1e-3)}",
        flush=True,
    )


@pytest.mark.bench
@pytest.mark.airflow
@pytest.mark.timeout(3600)
def test_deferred_tasks_in_a_real_triggerer(tmp_path: Path) -> None:
    runs, seconds = count("RUNS", 200), 60.0
    heading(f"{runs} deferred tasks in one `airflow triggerer`, fake engine, {seconds:g} s")
    for load in deferred(tmp_path, runs, seconds):
        idle, busy = (100 * each / seconds for each in (load.idle, load.busy))
        each = (load.busy - load.idle) * 60_000 / seconds / runs
        print(f"  {load.part}: {idle:.1f} % of one core with one run, {busy:.1f} % with {runs} more")
        print(
            f"    a run and minute {each:.0f} ms, memory a run {load.grown / runs / 1e3:.0f} KB", flush=True
        )


def test_a_few_controllers_go_on_in_one_event_loop(tmp_path: Path) -> None:
    found = controllers(tmp_path, 5, 2.0)
    assert found["floor"] > 0
    assert found["used"] > 0
