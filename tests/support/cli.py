"""The command line as a user has it: real processes, real runs on the local engine, in a folder with a space."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.host import processes as linux
from airflow_elastic.adapters.records.job_files import JobFiles
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.runs import Run
from airflow_elastic.engines.local.host import RUN_MARK
from tests.support.machine.patience import PATIENCE_SECONDS

SCRIPTS = Path(__file__).parent / "scripts"
COUNT, FAIL, HOLD = (str(SCRIPTS / name) for name in ("count.py", "faults/fail_at_once.py", "faults/hold.py"))
COMMAND = [sys.executable, "-m", "airflow_elastic.cli"]


@dataclass
class Shell:
    """A folder in which commands are typed."""

    cwd: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return str(self.cwd / "the run")

    def __call__(self, *words: str | int) -> subprocess.CompletedProcess[str]:
        """Type a command and wait for its end."""
        return subprocess.run(
            [*COMMAND, *map(str, words)],
            cwd=self.cwd,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    def start(self, *words: str | int) -> subprocess.Popen[str]:
        """Type a command and leave it at work; it is gone, at the latest, when the test is."""
        process = subprocess.Popen(
            [*COMMAND, *map(str, words)],
            cwd=self.cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def count(self, *arguments: str | int, options: tuple[str | int, ...] = ()) -> tuple[str | int, ...]:
        """The words of a run at our URI that counts, with a launcher that needs no torch."""
        return ("run", "--launcher", "python", "--uri", self.uri, *options, "--", COUNT, *arguments)

    @property
    def state(self) -> Any:
        return Run(open_store(self.uri)).state

    def status(self) -> Any:
        return json.loads(self("status", self.uri, "--json").stdout)

    def agents(self) -> list[int]:
        """Process ids of the workers' agents that live."""
        found = []
        for job in sorted(Path(self.uri, "local").glob("*/job.json")):
            files = JobFiles(job.parent)
            agents = (files.agent(node) for node in files.nodes())
            found += [agent.pid for agent in agents if agent and agent.alive]
        return found

    def counted(self, rank: int = 0) -> int:
        """How far count.py has come."""
        with contextlib.suppress(OSError, ValueError):
            return int(Path(self.uri, "user", f"count-{rank}").read_text())
        return 0

    def processes(self) -> list[linux.Process]:
        """Everything of the run that lives on this machine."""
        return linux.marked(RUN_MARK, str(Path(self.uri, "local")))

    def close(self) -> None:
        """End what tests have left."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for _ in range(200):
            left = self.processes()
            for one in left:
                one.send(signal.SIGKILL)
            if not left:
                return
            time.sleep(0.01)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code of a command that was left at work, and all that it said."""
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, output
