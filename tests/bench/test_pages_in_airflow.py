"""What pages cost inside a real Airflow: API servers of two processes, a thousand task instances, a logged-in person.

Meanwhile 50 people watch one run as the app does, and controllers write. The baseline is Airflow's own list of as many
DAG runs, asked of the same server by the same person in the same minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.views.cache import FRESH
from airflow_elastic.views.history import AGE
from tests.bench.support.airflow_pages import AIRFLOWS, DAGS, PROCESSES, ROOT, Served, Shown, serving
from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.bench.support.opens import Opens
from tests.bench.support.page_runs import CHARTS, a_day, a_month
from tests.support.histories import fill
from tests.support.machine.postgres import postgres

RUNS, TRAINING, PEOPLE = count("PAGE_RUNS", 1000), count("PAGE_TRAINING", 200), count("PAGE_PEOPLE", 50)
MONTHS, SECONDS = 10, count("PAGE_SECONDS", 120)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Shown]]:
    """The runs: those of a month first, then others that train, then those that have succeeded."""
    root = tmp_path_factory.mktemp("runs")
    patterns = root / "patterns"
    a_month(patterns / "month")
    a_day(patterns / "trains", trains=True)
    a_day(patterns / "ended", trains=False)
    for name in ("trains", "ended"):
        fill(open_store(str(patterns / name)), days=1, workers=2, ranks=16)
    found = []
    for number in range(RUNS):
        pattern = "month" if number < MONTHS else "trains" if number < TRAINING else "ended"
        dag, run = f"bench-{number % DAGS}", f"run-{number}"
        state = "success" if pattern == "ended" else "deferred"
        one = Shown(dag, run, state, root / "runs" / dag / run)
        shutil.copytree(patterns / pattern, one.folder)
        first = one.folder / "journal/00000000.json"
        first.write_text(json.dumps({**json.loads(first.read_text()), "task": one.key}))
        found.append(one)
    yield found
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="module")
def served(shown: list[Shown], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home, root = tmp_path_factory.mktemp("airflow") / "home", shown[0].folder.parents[1]
    with contextlib.ExitStack() as stack:
        database = ""
        if count("PAGE_POSTGRES", 0):
            database = f"postgresql+psycopg2://{stack.enter_context(postgres())}"
        yield stack.enter_context(serving(home, root, shown, database))


class Person:
    """Somebody with a browser: connections are kept, answers are compressed."""

    def __init__(self, served: Served, server: int = 0) -> None:
        headers = {"Authorization": f"Bearer {served.token}", "Accept-Encoding": "gzip"}
        self.client = httpx.Client(
            base_url=served.urls[server], headers=headers, timeout=120, trust_env=False
        )
        self.seconds: dict[str, list[float]] = {}
        self.bytes: dict[str, int] = {}

    def open(self, what: str, *paths: str) -> float:
        """Ask for all of these; returns the seconds until the last answer."""
        began = time.perf_counter()
        answers = [self.client.get(path) for path in paths]
        took = time.perf_counter() - began
        assert {answer.status_code for answer in answers} == {200}, [one.text[:300] for one in answers]
        self.seconds.setdefault(what, []).append(took)
        self.bytes[what] = max(self.bytes.get(what, 0), sum(one.num_bytes_downloaded for one in answers))
        return took


def page_of(one: Shown) -> tuple[str, str]:
    return one.path, f"{one.path}/history?names={CHARTS}&points=500"


LIST = "/elastic/api/runs?sort=-updated&limit=100&offset=0"


def script(name: str, *words: object, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.bench.scripts.{name}", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        text=True,
    )


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


@pytest.mark.bench
@pytest.mark.airflow
@pytest.mark.timeout(3600)
def test_pages_in_airflow(shown: list[Shown], served: Served) -> None:
    heading(
        f"pages in Airflow: {len(shown)} task instances, {TRAINING} train, {PEOPLE} watch one run, "
        f"{PROCESSES} processes"
    )
    people, chance = [Person(served, server) for server in range(PROCESSES)], random.Random(1)
    for what, path in (("list", LIST), ("Airflow's list", AIRFLOWS)):
        first = [1e3 * one.open("first", path) for one in people * 2]
        print(f"  {what}, the first who ask: {', '.join(f'{one:.0f}' for one in first)} ms")
    strangers = [1e3 * one.open("first", *page_of(run)) for run in shown[1:MONTHS] for one in people]
    print(f"  a run of 30 days, the first who opens it: {spread(strangers, 'ms')}", flush=True)

    watched = shown[0]
    writers = script("page_writers", SECONDS + 20, *(one.folder for one in shown[:TRAINING]))
    assert writers.stdout is not None
    writers.stdout.readline()
    watchers = script(
        "page_watchers",
        ",".join(served.urls),
        watched.path,
        PEOPLE,
        SECONDS,
        ELASTIC_BENCH_TOKEN=served.token,
    )
    time.sleep(10.0)  # all have come
    folders = [watched.folder / name for name in ("reports", "history/training", "history/controller")]
    with Opens([watched.folder, *folders]) as opens:
        began, used = time.monotonic(), served.used()
        loads = []
        while time.monotonic() < began + SECONDS - 20:
            person = chance.choice(people)
            person.open("list", LIST)
            person.open("Airflow's list", AIRFLOWS)
            person.open("a watched run", *page_of(watched))
            person.open("a run", *page_of(chance.choice(shown[:MONTHS])))
            loads.append(os.getloadavg()[0])
            time.sleep(chance.uniform(0.0, 1.0))
        lasted = time.monotonic() - began
        read, used = opens.counted(), served.used() - used
    said = json.loads(watchers.communicate()[0])
    writers.terminate()
    writers.wait()
    print(
        f"  load {median(loads):.1f}; processor time of the server: {100 * used / lasted:.0f} % of one processor"
    )
    seconds_of = {
        what: [one for person in people for one in person.seconds[what]] for what in people[0].seconds
    }
    sent = {what: max(person.bytes[what] for person in people) for what in seconds_of}
    base = median(seconds_of["Airflow's list"])
    for what, seconds in seconds_of.items():
        ratio = median(seconds) / base
        print(
            f"  {what}: {spread(seconds, 'ms', 1e3)}; {ratio:.2f} of Airflow's list; "
            f"p95 {1e3 * p95(seconds):.0f} ms; {sent[what] / 1e3:.0f} kB"
        )
    for what in ("list", "a watched run", "a run"):
        verdict(f"95 % of answers: {what}", 1e3 * p95(seconds_of[what]), 200, " ms")
    verdict("a run, as sent", sent["a run"] / 1e3, 300, " kB")
    for what, seconds in said["seconds"].items():
        same, each = said["same"][what], said["bytes"][what] / max(1, len(seconds) - said["same"][what])
        print(
            f"  the {PEOPLE} who watch, {what}: {spread(seconds, 'ms', 1e3)}; p95 {1e3 * p95(seconds):.0f} ms"
        )
        print(f"    {same} of {len(seconds)} answers said `as before`; others had {each / 1e3:.0f} kB")
    tell_reads(read, lasted)


def tell_reads(read: Counter[str], lasted: float) -> None:
    """How often the watched run was read, over once for each process and refresh."""
    reports = sum(number for name, number in read.items() if name.startswith("attempt-"))
    parts = sum(number for name, number in read.items() if name.endswith("-host"))
    print(f"  read of the watched run in {lasted:.0f} s: {reports} reports, {parts} parts of the history")
    verdict("reports read, of one a process and refresh", reports / (PROCESSES * lasted / FRESH), 1.05)
    verdict("history read, of once a process and refresh", parts / (PROCESSES * lasted / AGE), 1.2)
