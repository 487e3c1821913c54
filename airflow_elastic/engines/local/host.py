"""The node host: a process beside the workers that has torch imported, so that a new worker starts in milliseconds.

There is one for each run. It forks itself to start the agents of workers that should run and have not been started.
Workers do not depend on it: they go on when it dies, and the engine starts another one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host import processes
from airflow_elastic.adapters.host.environment import with_room
from airflow_elastic.adapters.host.processes import Process
from airflow_elastic.adapters.plugins import how_to_install
from airflow_elastic.adapters.records.job_files import JobFiles
from airflow_elastic.launchers.api import START_RANK
from airflow_elastic.launchers.read_early import before_import
from airflow_elastic.spec.errors import EngineError, SubmitRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_elastic.spec.run import RunSpec

#: Every process of a run on this machine has this variable in its environment, with the folder of the run's state.
RUN_MARK = "AIRFLOW_ELASTIC_LOCAL_RUN"

PIPE = "host.pipe"

#: Ranks have variables that their host has not, of about so many bytes.
_ROOM_BYTES = 16_000

_LACKING = re.compile(r"No module named '?[\w.]+'?")

#: Settings, connections and variables of the submitting Airflow, such as its database's password: not for workers.
_AIRFLOWS_OWN = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW_")


@dataclass(frozen=True, slots=True)
class NodeHost:
    """The host of the run whose state is in the folder `state`."""

    state: Path

    def process(self) -> Process | None:
        """The host's process, if one runs."""
        found = JobFiles(self.state).read("host.json", Process)
        return found if found and found.alive else None

    def ensure(self, spec: RunSpec, python: str, environment: Mapping[str, str], workers: int) -> None:
        """Make sure that a host runs, and let it look for workers to start.

        Args:
            spec: the run.
            python: the interpreter of its workers.
            environment: added to the host's own.
            workers: how many workers there are. Ranks are forked from a process that knows their number of threads.
        """
        if self.process() is None:
            self._start(spec, python, {**before_import(spec, workers), **environment})
        self.poke()

    def poke(self) -> None:
        """Wake the host after a change. There may be none: a host also looks by itself now and then."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self.state / PIPE, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(descriptor, b"!")
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def submitting(self) -> Iterator[None]:
        """One controller at a time submits a job of this run on this machine; the others wait."""
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "submit.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def stop(self) -> None:
        """End the host, even while it starts, and all other processes of the run on this machine."""
        while left := processes.marked(RUN_MARK, str(self.state)):
            for process in left:
                process.send(signal.SIGKILL)
            time.sleep(0.002)

    def _start(self, spec: RunSpec, python: str, more: Mapping[str, str]) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_AIRFLOWS_OWN)}
        environment = {**inherited, **more, **secrets(spec, os.environ), RUN_MARK: str(self.state)}
        room = _ROOM_BYTES + sum(len(name) + len(value) for name, value in spec.env.items())
        command = [python, "-u", START_RANK, "--node-host", str(self.state)]
        try:
            with (self.state / "host.log").open("ab") as log:
                # In a session of its own, so training survives the end of the terminal or the triggerer. It goes to the
                # background once it has registered: then it is nobody's zombie, and can be found.
                subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=with_room(environment, room),
                    start_new_session=True,
                    check=True,
                )
        except subprocess.CalledProcessError as error:
            log_path = self.state / "host.log"
            said = log_path.read_text(errors="replace").rstrip().rpartition("\n")[2]
            if (lacks := _LACKING.search(said)) is not None:  # it can never start with this interpreter
                raise SubmitRefused(
                    f"{python} cannot run workers: {lacks[0]}; in its environment, {how_to_install('torch')}"
                ) from error
            raise EngineError(
                f"the node host did not start (exit code {error.returncode}): see {log_path}"
            ) from error
        except OSError as error:
            raise EngineError(f"the node host could not be started: {' '.join(command)}: {error}") from error


def secrets(spec: RunSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """The secrets from the submitter's environment; they are passed on in memory and never written.

    Raises:
        SubmitRefused: one is not set.
    """
    values = {}
    for secret in spec.secrets:
        if secret.source == "env":
            if secret.key not in environment:
                raise SubmitRefused(
                    f"the secret {secret.name} must come from the environment variable {secret.key}, which is not set. "
                    "Set it where the run is submitted from (with Airflow: the triggerer, and the worker)"
                )
            values[secret.name] = environment[secret.key]
    return values
