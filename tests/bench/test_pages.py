"""What pages cost: the list of a thousand runs, and the page of one of them with a history of a month.

Beside them, in the same minutes, what the page of earlier releases did for each request: it read the whole journal.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli.inspect.run_table import summaries
from airflow_elastic.cli.inspect.ui import VARIABLE
from airflow_elastic.control.runs import Run
from airflow_elastic.views.all_runs.below import path_of
from tests.bench.support.figures import count, heading, spread, verdict
from tests.bench.support.page_runs import CHARTS, a_day, a_month
from tests.support.histories import fill

TOKEN = "the-token-of-this-bench"
RUNS, TRAINING, WATCHERS = count("PAGE_RUNS", 1000), count("PAGE_TRAINING", 200), count("PAGE_WATCHERS", 10)


class Server(NamedTuple):
    url: str
    pid: int

    def used(self) -> float:
        """Processor seconds so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("runs")
    a_month(root / "month")
    for number in range(2):
        a_day(root / f"dag-0/run-{number}", trains=number == 0)
    fill(open_store(str(root / "dag-0/run-0")), days=1, workers=2, ranks=16)
    for number in range(2, RUNS - 1):
        of = "run-0" if number < TRAINING else "run-1"
        shutil.copytree(root / "dag-0" / of, root / f"dag-{number % 20}/run-{number}")
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    """The program itself, on two processors."""
    with subprocess.Popen(
        [sys.executable, "-m", "airflow_elastic.cli", "ui", str(root), "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, VARIABLE: TOKEN, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(Path.cwd())},
    ) as running:
        assert running.stdout is not None
        os.sched_setaffinity(running.pid, sorted(os.sched_getaffinity(0))[:2])
        yield Server(running.stdout.readline().rstrip().rpartition(" ")[2].partition("/?")[0], running.pid)
        running.terminate()


@pytest.fixture(scope="module")
def controllers(root: Path) -> Iterator[None]:
    """What 200 controllers write while pages are open: a status document each every 5 s."""
    over = threading.Event()
    stores = [
        open_store(str(root / f"dag-{number % 20}/run-{number}")) for number in range(TRAINING) if number != 1
    ]

    def write() -> None:
        documents = {store.uri: store.get("status.json") or b"" for store in stores}
        while True:
            for store in stores:
                if over.wait(5.0 / len(stores)):
                    return
                store.put("status.json", documents[store.uri], durable=False)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join()


def answered(base: str, *paths: str, times: int = 10) -> tuple[list[float], int, int]:
    """Seconds that somebody waits for all of these, who is one of ten; the bytes sent, and those unpacked."""
    sizes = [0, 0]

    def watch(watcher: int) -> list[float]:
        chance, found = random.Random(watcher), []
        headers = {"Authorization": f"Bearer {TOKEN}", "Accept-Encoding": "gzip"}
        with httpx.Client(base_url=base, headers=headers, timeout=60) as browser:
            for _ in range(times):
                time.sleep(chance.uniform(0.0, 2.0))  # as people come
                began = time.perf_counter()
                answers = [browser.get(path) for path in paths]
                found.append(time.perf_counter() - began)
                assert {answer.status_code for answer in answers} == {200}
                sizes[0] = sum(answer.num_bytes_downloaded for answer in answers)
                sizes[1] = sum(len(answer.content) for answer in answers)
        return found

    with ThreadPoolExecutor(WATCHERS) as pool:
        every = [one for found in pool.map(watch, range(WATCHERS)) for one in found]
    return every, sizes[0], sizes[1]


def timed(work: Callable[[], object], times: int) -> list[float]:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return found


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


@pytest.mark.bench
@pytest.mark.usefixtures("controllers")
def test_pages(root: Path, server: Server) -> None:
    heading(f"pages: {RUNS} runs, {TRAINING} of them train, {WATCHERS} people look at the same time")
    run, store = path_of("month"), open_store(str(root))
    before = Run(open_store(str(root / "month")))
    print(f"  before, one run, nobody beside it: {spread(timed(before.status, 10), 'ms', 1e3)}")
    print(f"  before, all runs, nobody beside it: {spread(timed(lambda: summaries(store), 3), 'ms', 1e3)}")
    for name, paths, sized in (
        ("the list of runs", ("/api/runs",), False),
        ("the page of one run", (f"/api/{run}", f"/api/{run}/history?names={CHARTS}&points=500"), True),
        ("its workers and heat map", (f"/api/{run}/workers", f"/api/{run}/heatmap"), False),
        ("its events", (f"/api/{run}/events",), False),
    ):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        get = partial(httpx.get, headers=headers, timeout=120)
        first = timed(lambda paths=paths, get=get: [get(server.url + path) for path in paths], 1)  # type: ignore[misc]
        began = server.used()
        seconds, sent, unpacked = answered(server.url, *paths)
        used = (server.used() - began) / len(seconds)
        print(
            f"  {name}: {spread(seconds, 'ms', 1e3)}; {sent / 1e3:.0f} kB sent, {unpacked / 1e3:.0f} kB unpacked"
        )
        print(f"    the first who asks: {1e3 * first[0]:.0f} ms; {1e3 * used:.0f} ms of processor an answer")
        verdict(f"95 % of answers for {name}", 1e3 * p95(seconds), 200, " ms")
        if sized:
            verdict(f"{name}, as sent", sent / 1e3, 300, " kB")
