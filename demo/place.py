"""The demo's own folder: made empty at the start, and held by one demo at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from airflow_elastic.adapters.host import processes as linux
from airflow_elastic.spec.errors import ElasticError
from airflow_elastic.testing import processes
from airflow_elastic.testing.standalone import MARK

CHECKOUT = Path(__file__).resolve().parents[1]
DAGS = CHECKOUT / "dags"


class Trouble(ElasticError):
    """The demo cannot go on; its text says why, and what to do."""


@dataclass
class Place:
    """The folder `.demo` of a checkout."""

    folder: Path = CHECKOUT / ".demo"
    _lock: IO[str] | None = None
    _sessions: dict[int, int] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """AIRFLOW_HOME: database, logs, runs, data and models."""
        return self.folder / "airflow"

    def take(self) -> None:
        """Lock the folder for this demo."""
        try:
            self.folder.mkdir(exist_ok=True)
            self._lock = (self.folder / "lock").open("w")
        except OSError as error:
            raise Trouble(
                f"the demo cannot use {self.folder}: {error.strerror}; is it another user's?"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Trouble("another demo runs in this checkout: wait until it has ended, or end it") from None

    def empty(self) -> None:
        """Remove what an earlier demo left."""
        try:
            if self.home.exists():
                shutil.rmtree(self.home)
        except OSError as error:
            raise Trouble(
                f"{error.filename} cannot be removed: {error.strerror}; remove {self.folder}"
            ) from None

    def living(self) -> list[linux.Process]:
        """Every process that was started for this Airflow: its parts, its tasks, its training.

        They have a mark in their environment. Some parts of Airflow overwrite their environment with a title. These
        are found by their session, which Standalone notes and forgets when it has stopped; so it is kept here.
        """
        with contextlib.suppress(OSError, ValueError):
            noted = json.loads((self.home / "standalone" / "sessions.json").read_text())
            self._sessions |= {int(leader): int(started) for leader, started in noted}
        members = (
            linux.Process.of(one.pid) for one in processes.in_sessions(self._sessions) if self._ours(one)
        )
        return list({*linux.marked(MARK, str(self.home)), *(one for one in members if one is not None)})

    def _ours(self, process: processes.Process) -> bool:
        """Whether it is of a session that we know, and not of another one whose number was used again."""
        leader = processes.read(process.session)
        if leader is not None:
            return leader.started == self._sessions[process.session]
        try:
            return os.readlink(f"/proc/{process.pid}/cwd").startswith(str(self.home))
        except OSError:
            return False

    def end_all(self, seconds: float = 10.0) -> int:
        """Kill what an earlier demo left running (`KEEP=1` does); returns how many processes that were."""
        killed = set()
        deadline = time.monotonic() + seconds
        while living := self.living():
            if time.monotonic() > deadline:
                pids = ", ".join(str(process.pid) for process in living)
                raise Trouble(f"an earlier demo's processes {pids} cannot be killed: look at them with ps")
            for process in living:
                process.send(signal.SIGKILL)
                killed.add(process.pid)
            time.sleep(0.05)
        return len(killed)
