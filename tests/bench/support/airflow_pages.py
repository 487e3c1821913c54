"""An Airflow that only shows pages: its database, with a task instance for each run, and its API servers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from airflow_elastic.testing import airflow_settings as settings
from airflow_elastic.testing import processes as linux
from airflow_elastic.testing.airflow_rest import AirflowRest, poll
from airflow_elastic.testing.airflow_sqlite import PART
from airflow_elastic.testing.ports import free_port

ROOT = Path(__file__).parents[3]
PROCESSES, DAGS, EDITOR, PASSWORD = 2, 20, "ada", "of-this-bench"

#: Airflow's own list of DAG runs: the baseline. Its list of task instances crashes Airflow 3.3.2 on Python 3.11.7.
AIRFLOWS = "/api/v2/dags/~/dagRuns?limit=100"

_DAGS = """
from airflow.sdk import DAG
from airflow_elastic.operators import ElasticTrainOperator

for number in range({dags}):
    with DAG(f"bench-{{number}}", schedule=None) as dag:
        ElasticTrainOperator(task_id="train", engine="local", command=["train.py"], run_uri="{{{{ run_id }}}}")
    globals()[f"bench_{{number}}"] = dag
"""


@dataclass(frozen=True)
class Shown:
    """A task instance and its run: state of the task, and folder of the run."""

    dag: str
    run: str
    state: str
    folder: Path

    @property
    def key(self) -> str:
        """The task that the run's journal names."""
        return f"{self.dag}/{self.run}/train/-1"

    @property
    def path(self) -> str:
        """Of its routes, below the server's address."""
        return f"/elastic/api/ti/{self.key}"


@dataclass(frozen=True)
class Served:
    """Running API servers of one Airflow."""

    urls: tuple[str, ...]
    pids: tuple[int, ...]
    token: str

    def used(self) -> float:
        """Processor seconds so far, of all their processes."""
        total = 0
        for process in (one for pid in self.pids for one in linux.family(pid)):
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(
    home: Path, root: Path, shown: Iterable[Shown], database: str = "", *, processes: int = PROCESSES
) -> Iterator[Served]:
    """API servers of one process over these runs, as replicas. Neither scheduler nor triggerer runs beside them.

    Args:
        home: AIRFLOW_HOME, to be made.
        root: above the folders of all runs.
        shown: the task instances.
        database: a URL of SQLAlchemy. Default: SQLite.
        processes: how many servers.
    """
    program, state = Path(sys.executable).parent / "airflow", home / "state"
    (home / "dags").mkdir(parents=True)
    (home / "dags/bench.py").write_text(_DAGS.format(dags=DAGS))
    settings.write_passwords(state, {EDITOR: "user"}, PASSWORD)
    environment = settings.environment(
        home,
        state,
        program,
        dags_folder=home / "dags",
        port=free_port(),
        users={EDITOR: "user"},
        connections={},
        parallelism=1,
        takeover=30,
        extra={
            PART: "api-server",
            "AIRFLOW__ELASTIC__PAGE_ROOTS": str(root),
            "AIRFLOW__API_AUTH__JWT_SECRET": "of-this-bench-" * 8,
            "PYTHONPATH": str(ROOT),
            **({"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database} if database else {}),
        },
    )
    settings.run(program, ["db", "migrate"], environment, home, 600)
    settings.run(program, ["dags", "reserialize"], environment, home, 600)
    lines = "".join(f"{one.dag}\t{one.run}\t{one.state}\t{one.folder}\n" for one in shown)
    fill = [sys.executable, str(ROOT / "tests/bench/scripts/fill_airflow.py")]
    subprocess.run(
        fill, env=environment, cwd=home, input=lines, text=True, check=True, stdout=subprocess.DEVNULL
    )
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        started = [stack.enter_context(_server(program, environment, home)) for _ in range(processes)]
        tokens = [_token(url, server, home) for url, server in started]
        yield Served(tuple(url for url, _ in started), tuple(one.pid for _, one in started), tokens[0])


@contextmanager
def _server(
    program: Path, environment: dict[str, str], home: Path
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    command = [str(program), "api-server", "--workers", "1", "--port", str(port)]
    with (home / "server.log").open("ab") as log:
        server = subprocess.Popen(
            command, env=environment, cwd=home, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield f"http://127.0.0.1:{port}", server
    finally:
        left = linux.end(lambda: linux.family(server.pid), timeout=20)
        assert not left, left
        server.wait()


def _token(url: str, server: subprocess.Popen[bytes], home: Path) -> str:
    """Of the person, as soon as the server answers. Any server accepts it."""

    def said() -> str:
        return (home / "server.log").read_text()[-5000:]

    with closing(AirflowRest(url, EDITOR, PASSWORD)) as client:

        def answers() -> bool | None:
            assert server.poll() is None, said()
            try:
                return bool(client.health()) or None
            except httpx.HTTPError:
                return None

        poll("the API server", answers, timeout=300, hint=said)
        return client.login()
