"""Starts of the script that reports what it can see: by commands of others, by runs of ours, as our agents do it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from airflow_elastic.adapters.records.job_files import Meeting
from airflow_elastic.launchers import PYTHON, TORCHRUN, Place
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
from tests.support.cli import SCRIPTS
from tests.support.machine.patience import PATIENCE_SECONDS, until
from tests.support.runs.pods import pod, submitted

COMMAND = Path(sys.executable).with_name("airflow-elastic")
ARGUMENTS = ("--lr", "0.1", "two words", "ü", "")

#: What standard input holds of each command that is started.
TYPED = b"typed\n"

#: Modules that only a script may import which is started beside them: nothing of ours.
TRAPS = ("tokenize", "code", "calendar", "dataclasses", "torch")

Facts = dict[str, Any]


class Streams(NamedTuple):
    """Descriptors that a command is given."""

    stdin: int
    output: int


@contextlib.contextmanager
def pipe_and_file(log: Path) -> Iterator[Streams]:
    """Standard input is a pipe, as after `cat data |`; output goes to a file."""
    reads, writes = os.pipe()
    os.write(writes, TYPED)
    os.close(writes)
    try:
        with log.open("wb") as output:
            yield Streams(reads, output.fileno())
    finally:
        os.close(reads)


@contextlib.contextmanager
def terminal(log: Path) -> Iterator[Streams]:
    """Both are a terminal, in which somebody types; what it shows is in the file at the end."""
    screen, descriptor = pty.openpty()
    os.write(screen, TYPED + 8 * b"\x04")  # each reader wants an end of its own

    def show() -> None:
        with log.open("wb") as output, contextlib.suppress(OSError):  # nobody has it open any more
            while data := os.read(screen, 1 << 16):
                output.write(data)

    reader = threading.Thread(target=show, daemon=True)
    reader.start()
    try:
        yield Streams(descriptor, descriptor)
    finally:
        os.close(descriptor)
        reader.join(PATIENCE_SECONDS)
        os.close(screen)


@dataclass(frozen=True)
class Ground:
    """Folders in which runs are started: scripts in a folder below traps, and the same as a package."""

    root: Path

    @classmethod
    def lay(cls, root: Path) -> Ground:
        """Make it, in an empty folder. In the background of a shell tests ignore SIGQUIT, and so would their ranks."""
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        scripts = SCRIPTS / "parity"
        shutil.copytree(scripts, root / "project" / "tools")
        for name in TRAPS:
            (root / "project" / f"{name}.py").write_text(f"raise SystemExit('the {name}.py of the project')")
        shutil.copytree(scripts, root / "modules" / "package")
        (root / "modules" / "package" / "__init__.py").write_text("")
        return cls(root)

    def facts(self, name: str) -> Path:
        (folder := self.root / name).mkdir(exist_ok=True)
        return folder

    def environment(self, name: str) -> dict[str, str]:
        here = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FACTS", "COV_"))}
        # pytest has told readline how wide its window is, which only those know that C starts.
        here = {k: v for k, v in here.items() if k not in ("COLUMNS", "LINES")}
        return {**here, "FACTS": str(self.facts(name)), "FACTS_BASE": " ".join(here)}

    def plain(
        self, name: str, folder: str, *command: str | Path, in_terminal: bool = False
    ) -> dict[str, Facts]:
        """Start the script without us."""
        with self._started(name, folder, *command, in_terminal=in_terminal):
            pass
        return self.told(name)

    @contextlib.contextmanager
    def run(
        self, name: str, folder: str, *words: str, in_terminal: bool = False
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start a run of ours; after the block it has ended."""
        command: tuple[str | Path, ...] = (
            COMMAND,
            "run",
            "--no-output",
            "--uri",
            f"{self.root / name}-run",
            *words,
        )
        with self._started(name, folder, *command, in_terminal=in_terminal) as process:
            yield process

    def output(self, name: str) -> str:
        """What the command has printed."""
        log = self.root / f"{name}.log"
        return log.read_text() if log.exists() else "no log"

    def alone(self, name: str, folder: str, *command: str) -> Facts:
        """Start one rank of the launcher `python` as an agent does, without any."""
        world = dict.fromkeys(("RANK", "LOCAL_RANK"), "0") | dict.fromkeys(
            ("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1"
        )
        more = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        attempt = {"AIRFLOW_ELASTIC_ATTEMPT": "1", "AIRFLOW_ELASTIC_GENERATION": "1"}
        spec = RunSpec((*command, *ARGUMENTS), launcher="python")
        with open(self.root / f"{name}.log", "wb") as log:
            subprocess.run(
                PYTHON.command(spec, Place(sys.executable, 0, 1, "", 0)),
                cwd=self.root / folder,
                env={**self.environment(name), **world, **more, **attempt},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=PATIENCE_SECONDS,
                start_new_session=True,
            )
        return self.told(name)["1-1-0"]

    def ranks(self, name: str, folder: str, *command: str, procs: int) -> dict[str, Facts]:
        """Start all ranks of a worker, of the launcher `torchrun`, by what its agent starts them with."""
        # These import torch, which only this start needs.
        from airflow_elastic.runtime.agent.fork_server import ForkServer
        from airflow_elastic.runtime.agent.rank_group import RankGroup, rank_environments
        from tests.support.training.saving import SavingWorker

        node = SavingWorker(f"{self.root / name}-run").node
        assert node.members is not None
        restart = RestartPolicy(policy="Never", backoff_limit=0)
        spec = RunSpec((*command, *ARGUMENTS), workers=Workers(1, procs=procs), restart=restart)
        node.record = replace(node.record, spec=spec)
        node.rank_files.parent.mkdir(parents=True, exist_ok=True)
        words = TORCHRUN.command(spec, Place(sys.executable, 0, 1, "", 0))
        with (
            mock.patch.dict(os.environ, self.environment(name), clear=True),
            contextlib.chdir(self.root / folder),
            RankGroup(
                node, words, rank_environments(node, node.members, Meeting("127.0.0.1", 1)), ForkServer(node)
            ) as group,
        ):
            until(lambda: len(group.codes) == procs, "the ranks' end")
        return self.told(name)

    def pod(self, name: str, folder: str, *command: str, procs: int) -> dict[str, Facts]:
        """Start a pod with these ranks, as Kubernetes does."""
        restart = RestartPolicy(policy="Never", backoff_limit=0)
        spec = RunSpec((*command, *ARGUMENTS), workers=Workers(1, procs=procs), restart=restart)
        files = submitted(f"{self.root / name}-run", self.root / f"{name}-files", spec)
        place = self.root / f"{name}-pod"
        with pod(files, 0, place, self.environment(name), self.root / folder) as process:
            process.wait(PATIENCE_SECONDS)
        shutil.copy(place / "log", self.root / f"{name}.log")
        return self.told(name)

    def told(self, name: str) -> dict[str, Facts]:
        found = {}
        for path in sorted(self.facts(name).glob("*.json")):
            found[path.stem] = json.loads(path.read_text())
            if end := path.with_suffix(".end").read_text():
                found[path.stem]["the end"] = end.splitlines()
        if not found:
            pytest.fail(f"nothing was told: {self.output(name)}")
        return found

    @contextlib.contextmanager
    def _started(
        self, name: str, folder: str, *command: str | Path, in_terminal: bool
    ) -> Iterator[subprocess.Popen[bytes]]:
        log = self.root / f"{name}.log"
        with terminal(log) if in_terminal else pipe_and_file(log) as streams:
            process = subprocess.Popen(
                [*command, *ARGUMENTS],
                cwd=self.root / folder,
                env=self.environment(name),
                stdin=streams.stdin,
                stdout=streams.output,
                stderr=streams.output,
            )
            try:
                yield process
                process.wait(PATIENCE_SECONDS)
            finally:
                process.kill()
                process.wait()
