"""What many sensors of a few runs cost their triggerer while nothing happens, and as many triggers of Airflow."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Access, Client
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import start_run
from airflow_elastic.control.runs import Run
from airflow_elastic.spec import layout
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.bench.scripts.watching import job
from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.bench.test_kube_watch import Found, create, follow
from tests.bench.test_kube_watch import pytestmark as needs_cluster

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


def sensors(root: Path, runs: int, many: int, seconds: float, poll: float, home: Path) -> Found:
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
    return Found(many, **json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.bench
@pytest.mark.airflow
@pytest.mark.timeout(3600)
def test_sensors_in_one_triggerer(tmp_path: Path) -> None:
    runs, many, seconds = count("RUNS", 100), count("SENSORS", 1000), 3 * POLL_SECONDS
    heading(f"{many} sensors of {runs} runs in one event loop, a look each {POLL_SECONDS:g} s, {seconds:g} s")
    make_runs(tmp_path / "runs", runs)
    for wanted in (many, runs):
        report(sensors(tmp_path / "runs", runs, wanted, seconds, POLL_SECONDS, tmp_path / "airflow"), runs)


def report(found: Found, runs: int | None = None) -> None:
    """Print what sensors of so many runs used, or Airflow's triggers."""
    requests = sum(found.requests.values())
    print(f"  {found.jobs} {'sensors' if runs else 'of KubernetesJobTrigger'}")
    print(f"    requests for each and minute        {found.rate:.3f}  {found.requests}")
    if runs:
        looks = requests / found.seconds * POLL_SECONDS / runs
        print(f"    requests a run and poll interval    {looks:.2f}")
    print(f"    processor time for each and minute  {spread(found.work, 'ms', 1000)}")
    print(f"    memory for each                     {found.grown / found.jobs / 1000:.0f} KB", flush=True)


@needs_cluster
@pytest.mark.bench
@pytest.mark.airflow
@pytest.mark.timeout(3600)
async def test_sensors_beside_airflows_triggers(
    tmp_path: Path, access: Access, client: Client, pod_options: dict[str, Any]
) -> None:
    """Both at once, each in a process of its own: as many sensors as triggers that follow Jobs."""
    runs, many, seconds = count("RUNS", 100), count("SENSORS", 1000), 3 * POLL_SECONDS
    heading(f"{many} sensors of {runs} runs beside {many} of KubernetesJobTrigger, {seconds:g} s")
    namespace = pod_options["namespace"]
    make_runs(tmp_path / "runs", runs)
    await create(client, namespace, [job(number, namespace) for number in range(many)])
    words = (tmp_path / "runs", runs, many, seconds, POLL_SECONDS, tmp_path / "airflow")
    ours, theirs = await asyncio.gather(
        asyncio.to_thread(sensors, *words),
        follow("KubernetesJobTrigger", tmp_path, access, namespace, many, seconds),
    )
    report(ours, runs)
    report(theirs)
    verdict("requests, over theirs", ours.rate / theirs.rate, 0.05)
    verdict("processor time, over theirs", median(ours.work) / median(theirs.work), 0.2)


def test_a_look_serves_all_sensors_of_a_run(tmp_path: Path) -> None:
    """The same, bounded: no request but that of the document, and one of them a run and interval."""
    make_runs(tmp_path / "runs", 3)
    found = sensors(tmp_path / "runs", 3, 30, 5.0, 0.5, tmp_path / "airflow")
    assert set(found.requests) == {"get status"}
    assert found.requests["get status"] <= 3 * (found.seconds / 0.5 + 1)
