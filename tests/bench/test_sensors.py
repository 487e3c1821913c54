"""What many sensors of a few runs cost their triggerer while nothing happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import start_run
from airflow_elastic.control.runs import Run
from airflow_elastic.spec import layout
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.bench.support.figures import count, heading, spread

CHECKOUT = Path(__file__).parents[2]
ENGINE = "airflow_elastic.testing.fake_engine:FakeEngine"

#: The default of sensors, seconds.
POLL_SECONDS = 30.0


def make_runs(root: Path, runs: int) -> None:
    """Runs whose controllers have just written, and seem to for a day."""
    spec = RunSpec(command=("train.py",), name="bench", engine=ENGINE, workers=Workers(2, procs=4))
    for number in range(runs):
        store = open_store(str(root / f"run-{number}"))
        start_run(store, spec, engine=FakeEngine())
        document: dict[str, Any] = Run(store).status()
        store.put(layout.STATUS, json.dumps({**document, "at": time.time() + 86_400}).encode())


def sensors(root: Path, runs: int, many: int, seconds: float, poll: float, home: Path) -> dict[str, Any]:
    """What so many sensors used in a process of their own."""
    words = map(str, (root, runs, many, seconds, poll))
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.scripts.sensors", *words],
        cwd=CHECKOUT,
        env={**os.environ, "AIRFLOW_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.bench
@pytest.mark.airflow
@pytest.mark.timeout(3600)
def test_sensors_in_one_triggerer(tmp_path: Path) -> None:
    runs, many, seconds = count("RUNS", 100), count("SENSORS", 1000), 3 * POLL_SECONDS
    heading(f"{many} sensors of {runs} runs in one event loop, a look each {POLL_SECONDS:g} s, {seconds:g} s")
    make_runs(tmp_path / "runs", runs)
    for wanted in (many, runs):
        found = sensors(tmp_path / "runs", runs, wanted, seconds, POLL_SECONDS, tmp_path / "airflow")
        minutes = found["seconds"] / 60
        requests = sum(found["requests"].values())
        print(f"  {wanted} sensors")
        print(
            f"    requests a sensor and minute        {requests / minutes / wanted:.3f}  {found['requests']}"
        )
        print(
            f"    requests a run and poll interval    {requests / found['seconds'] * POLL_SECONDS / runs:.2f}"
        )
        each = [share * 60_000 / wanted for share in found["cpu"]]
        print(f"    processor time a sensor and minute  {spread(each, 'ms')}")
        print(f"    memory a sensor                     {found['grown'] / wanted / 1000:.0f} KB", flush=True)


def test_a_look_serves_all_sensors_of_a_run(tmp_path: Path) -> None:
    """The same, bounded: no request but that of the document, and one of them a run and interval."""
    make_runs(tmp_path / "runs", 3)
    found = sensors(tmp_path / "runs", 3, 30, 5.0, 0.5, tmp_path / "airflow")
    assert set(found["requests"]) == {"get status"}
    assert found["requests"]["get status"] <= 3 * (found["seconds"] / 0.5 + 1)
