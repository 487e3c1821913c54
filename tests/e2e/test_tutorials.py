"""The tutorials, as a reader follows them: each block in order, in an empty folder, with the output that they show."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_elastic.adapters.host import processes
from airflow_elastic.testing.ports import free_port
from airflow_elastic.testing.processes import in_sessions, send
from tests.support.runs.pages import DOCS, ROOT, Block, blocks_of

#: A block that is repeated until something has happened, as its reader does, or that goes on in the background.
PATIENCE_SECONDS = 180.0


class Reader:
    """Somebody in a folder, with a shell."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self._env = env
        self._exports = ""
        self._background: list[tuple[subprocess.Popen[str], Path]] = []
        self._printed = ""

    def follow(self, page: str, *, only: set[str] | None = None) -> None:
        """Do what each block of a tutorial says.

        Args:
            page: the name of the tutorial.
            only: write these files, and nothing else.
        """
        for block in blocks_of(DOCS / "tutorials" / page):
            if block.title is not None and (only is None or block.title in only):
                file = self.folder / block.title
                file.parent.mkdir(exist_ok=True)
                file.write_text(block.text)
            elif only is None and block.language == "text":
                self._compare(block)
            elif only is None and block.language == "sh" and "not run" not in block.notes:
                self._type(block)

    def _type(self, block: Block) -> None:
        if block.text.startswith("export "):
            self._exports += block.text
        elif "background" in block.notes:
            self._begin(block)
        else:
            self._printed = self._output(block)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while "until" in block.notes and not re.search(block.notes["until"], self._printed):
                assert time.monotonic() < deadline, (
                    f"{block}: {block.notes['until']} never came:\n{self._printed}"
                )
                with contextlib.suppress(subprocess.TimeoutExpired):  # a pause between two looks
                    subprocess.run(["cat"], stdin=subprocess.PIPE, timeout=0.5, check=False)
                self._printed = self._output(block)

    def _output(self, block: Block) -> str:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", self._exports + block.text],
            cwd=self.folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=2 * PATIENCE_SECONDS,
        )
        assert done.returncode == 0 or "until" in block.notes, f"{block}:\n{done.stdout}"
        return done.stdout

    def _begin(self, block: Block) -> None:
        log = self.folder / "background.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"{self._exports}exec {block.text}"],
                cwd=self.folder,
                env=self._env,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self._background.append((process, log))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while block.notes["background"] not in log.read_text():
            going_on = process.poll() is None and time.monotonic() < deadline
            assert going_on, f"{block}:\n{log.read_text()[-4000:]}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)

    def _compare(self, block: Block) -> None:
        """Each line that the page shows was printed, in this order; numbers are others."""
        rest = self._printed
        for line in block.text.splitlines():
            pattern = re.sub(r"\d+", r"\\d+", re.escape(line)) if line != "..." else ""
            found = re.search(pattern, rest)
            assert found, f"{block}: {line!r} was not printed, but:\n{self._printed}"
            rest = rest[found.end() :]

    def close(self) -> None:
        """End what was begun in the background, and all that it has started."""
        for process, _ in self._background:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        # Some of Airflow's processes have a title where their environment was: their session shows whose they are.
        for begun in in_sessions({process.pid for process, _ in self._background}):
            send(begun, signal.SIGKILL)
        for one in processes.marked("AIRFLOW_ELASTIC_TUTORIAL", str(self.folder)):
            one.send(signal.SIGKILL)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTEST"))}
    port = str(free_port())
    env = kept | {
        "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}",
        "NO_COLOR": "1",
        "AIRFLOW_ELASTIC_TUTORIAL": str(tmp_path),
        "AIRFLOW__API__PORT": port,
        "AIRFLOW__API__BASE_URL": f"http://localhost:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://localhost:{port}/execution/",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
    }
    someone = Reader(tmp_path, env)
    try:
        yield someone
    finally:
        someone.close()


@pytest.mark.siblings("tutorials")
def test_the_first_run(reader: Reader) -> None:
    reader.follow("first-run.md")


@pytest.mark.airflow
@pytest.mark.siblings("tutorials")
def test_the_first_dag(reader: Reader) -> None:
    pytest.importorskip("airflow")
    reader.follow("first-run.md", only={"train.py"})
    reader.follow("first-dag.md")


@pytest.mark.airflow
@pytest.mark.siblings("tutorials")
def test_the_first_retraining(reader: Reader) -> None:
    pytest.importorskip("airflow")
    dag = next(
        block for block in blocks_of(DOCS / "tutorials/first-dag.md") if block.text.startswith("export")
    )
    reader.follow("first-run.md", only=set())
    reader._exports = dag.text
    reader.follow("first-retraining.md")


def test_the_first_cluster_as_far_as_it_needs_no_cluster(reader: Reader) -> None:
    reader.follow("first-cluster.md")
