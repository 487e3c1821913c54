"""A real `airflow standalone` of one's own: started, watched, asked, hurt and stopped for certain.

The project's tests and its demo run it; so can a user's tests of their own DAGs:

    with Standalone(home=tmp_path / "airflow", dags_folder=Path("dags")) as airflow:
        airflow.wait_for_dag("train")
        run_id = airflow.trigger("train", {"epochs": 1})
        airflow.wait_task("train", run_id, "train", "deferred")
        airflow.kill_triggerer()
        airflow.start_triggerer()
        airflow.wait_run("train", run_id)

It starts the `airflow` program of this virtual environment, with SQLite and LocalExecutor. Scheduler, triggerer, DAG
processor and API server are its own, and listen on 127.0.0.1 only. Airflow itself is not imported here.

`airflow standalone` does not restart its parts. Each request of this object looks whether they live, so all waits do.
A scheduler or DAG processor that ended or hangs starts again. If the triggerer dies, deferred tasks stay deferred until
another one is started (`start_triggerer`).

SIGTERM ends `airflow standalone` without ending its parts. So `stop` ends the parts first, and then kills the rest of
their session.

A training process in a session of its own is not part of Airflow and goes on after `stop`, as in production.
`detached` lists such processes, and `stop(detached=True)` kills them too. Linux only.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import httpx
from tenacity import retry, retry_if_exception_message, stop_after_attempt

from airflow_elastic.testing import airflow_settings as settings
from airflow_elastic.testing import processes
from airflow_elastic.testing.airflow_parts import Parts
from airflow_elastic.testing.airflow_rest import AirflowError, AirflowRest, poll
from airflow_elastic.testing.ports import check_port, free_port

MARK = "AIRFLOW_ELASTIC_STANDALONE_HOME"
"""The environment variable, holding the home, that every process started below carries."""

#: SQLite lets one process write at a time; on a busy machine Airflow's others give up.
_LOCKED = retry_if_exception_message(match="(?s).*database is locked")


class Standalone(AirflowRest):
    """One Airflow: a context manager, or `start` and `stop`. It can start again, on the same data.

    Args:
        home: AIRFLOW_HOME: database, logs, configuration, passwords. Made if missing, kept afterwards; one
            running Airflow at a time. The developer's ~/airflow and AIRFLOW* variables are never read.
        dags_folder: the DAG files, used in place.
        port: of the API server and UI, on 127.0.0.1; None takes a free one.
        env: more environment variables for every process. An `AIRFLOW__SECTION__KEY` overrides a setting made here.
        connections: Airflow connections by id, as a URI or as a mapping with `conn_type`, `host`, `extra` and others.
            They are passed in the environment: every process has them, the UI's list does not.
        users: role by user name; roles are `viewer`, `user`, `op`, `admin`. This object logs in as the first user.
        password: password of every new user; None makes one up. Passwords that the home already has do not change.
        parallelism: how many tasks run at once.
        takeover: seconds without a heartbeat after which another triggerer takes over the triggers of a dead
            one. Airflow's own default is 30; at least 5.
        start_timeout: seconds that `start` and `start_triggerer` wait until all is healthy.
        stop_timeout: seconds that the parts, and tasks in a worker, have to end before they are killed.
        restarts: how often scheduler and DAG processor may each start again.
        hung_after: seconds without a heartbeat after which one of these counts as hung, is killed, and starts again.
        progress: called with words for a person whenever the start has come further, and when a part starts again.

    Raises:
        AirflowError: an argument cannot work. Nothing has been started.
    """

    def __init__(
        self,
        home: Path,
        dags_folder: Path,
        *,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        connections: Mapping[str, Mapping[str, Any] | str] | None = None,
        users: Mapping[str, str] | None = None,
        password: str | None = None,
        parallelism: int = 4,
        takeover: float = 10.0,
        start_timeout: float = 300.0,
        stop_timeout: float = 10.0,
        restarts: int = 3,
        hung_after: float = 90.0,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.home, self.dags_folder = home.absolute(), dags_folder.absolute()
        self.start_timeout, self.stop_timeout, self.progress = start_timeout, stop_timeout, progress
        self.log_path = self.home / "standalone.log"
        self._state = self.home / "standalone"
        self._program = Path(sys.executable).parent / "airflow"
        self._sessions = processes.Sessions(self._state / "sessions.json", f"{MARK}={self.home}")
        self._lock: IO[str] | None = None
        self._standalone: subprocess.Popen[bytes] | None = None
        self._more: list[subprocess.Popen[bytes]] = []
        self.parts = Parts(
            self._state,
            self.log_path,
            self._sessions,
            self._spawn,
            lambda: self.health(timeout=10),
            progress,
            restarts=restarts,
            hung_after=hung_after,
            start_timeout=start_timeout,
        )
        if not self.dags_folder.is_dir():
            raise AirflowError(f"dags_folder: given {str(dags_folder)!r}; there is no such folder")
        if not os.access(self._program, os.X_OK):
            raise AirflowError(
                f"there is no {self._program}: install Airflow beside this Python, with "
                "pip install 'airflow-elastic[airflow]'"
            )
        if takeover < 5:
            raise AirflowError(
                f"takeover: given {takeover:g}; allowed: 5 s or more, or a triggerer is robbed while busy"
            )
        self.port = free_port() if port is None else port
        self.users = dict(users or {"admin": "admin"})
        username = next(iter(self.users))
        self.passwords = settings.write_passwords(self._state, self.users, password)
        super().__init__(f"http://127.0.0.1:{self.port}", username, self.passwords[username])
        self.environment = settings.environment(
            self.home,
            self._state,
            self._program,
            dags_folder=self.dags_folder,
            port=self.port,
            users=self.users,
            connections=connections or {},
            parallelism=parallelism,
            takeover=takeover,
            extra={MARK: str(self.home), **(env or {})},
        )

    # -- its life --------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def login_hint(self) -> str:
        """Where to look and how to log in, for a person."""
        return f"{self.url}  (user {self.username}, password {self.password})"

    def start(self) -> None:
        """Start everything and return once scheduler, triggerer and DAG processor are healthy.

        What an earlier one left running in this home, because its program was killed, is ended first.

        Raises:
            AirflowError: it cannot start, or did not get healthy in time; with the end of its log. Nothing is
                left running then.
        """
        if self._standalone is not None:
            raise AirflowError(f"Airflow is already running at {self.url}; stop it before starting it again")
        self._lock = settings.lock(self._state, self.home)
        try:
            self._sweep()
            check_port(self.port)
            settings.forget_pids(self._state)
            settings.write_shim(self._state, self._program)
            since, began = datetime.now(UTC), time.monotonic()
            atexit.register(self.stop)
            self.progress(f"starting Airflow in {self.home}")
            self.log_path.unlink(missing_ok=True)
            self._standalone = self._spawn(["standalone"], self.log_path)
            self._wait_healthy({"scheduler", "triggerer", "dag_processor"}, since, self._died, self.log_path)
            self.parts.watch(since)
            self.progress(f"Airflow is ready after {time.monotonic() - began:.0f} s: {self.login_hint}")
        except BaseException:
            self.stop()
            raise

    def stop(self, *, detached: bool = False) -> None:
        """End every process of this Airflow; harmless where none runs.

        Args:
            detached: also kill what runs in sessions of its own (see `detached`).

        Raises:
            AirflowError: a process could not be killed.
        """
        atexit.unregister(self.stop)
        self.parts.rest()
        started = [one for one in (self._standalone, *self._more) if one is not None]
        # These end by themselves when asked, after the tasks that run, which report to the API server.
        busy = [self.part_pid(part) for part in ("scheduler", "dag-processor")] + self.triggerer_pids()
        for pid in filter(None, busy):
            if process := processes.read(pid):
                processes.send(process, signal.SIGTERM)
        # These have nothing to finish, and `airflow standalone` would never end: they are only killed.
        idle = {self.part_pid("api-server"), self._standalone and self._standalone.pid}
        deadline = time.monotonic() + self.stop_timeout
        while {process.pid for process in self._sessions.members()} - idle and time.monotonic() < deadline:
            time.sleep(0.05)
        left = processes.end(self._sessions.members, timeout=10)
        if detached:
            left += processes.end(self._sessions.detached, timeout=10)
        _all_killed(left, "")
        for one in started + self.parts.forget():
            one.wait()
        self._standalone, self._more = None, []
        self.close()
        if self._lock is not None:
            self._sessions.forget()
            self._lock.close()
            self._lock = None

    def look(self, *, at_once: bool = False) -> None:
        """See to the parts: see `Parts.look`. Every request does it."""
        if self._standalone is not None and self._standalone.poll() is not None:
            self.parts.give_up(self._died() or "")
        self.parts.look(at_once=at_once)

    def condition(self) -> str:
        """How all parts are, with the end of the log of those that are not well."""
        return self.parts.condition()

    def detached(self) -> list[processes.Process]:
        """The processes that came out of this Airflow but live in sessions of their own: training, here.

        Found by the environment they inherited: one that was started with a clean environment is not seen.
        """
        return self._sessions.detached()

    # -- hurting it ------------------------------------------------------------------------------------------

    def part_pid(self, part: str) -> int | None:
        """The pid of a part: see `Parts.pid`."""
        return self.parts.pid(part)

    def triggerer_pids(self) -> list[int]:
        """The pids of the living triggerers: that of `airflow standalone`, then those of `start_triggerer`.

        Each is the supervisor; the process that runs the triggers is its child.
        """
        first = self.part_pid("triggerer")
        more = [one.pid for one in self._more if processes.lives(one)]
        return more if first is None else [first, *more]

    def kill_triggerer(self, pid: int | None = None) -> list[int]:
        """SIGKILL every triggerer and the process that runs its triggers; return their pids once gone.

        Nothing replaces it: `airflow standalone` does not notice, and what is deferred stays deferred. What
        triggers started in sessions of their own lives on.

        Args:
            pid: kill only this one of `triggerer_pids`.

        Raises:
            AirflowError: no triggerer runs, or one could not be killed.
        """
        pids = [one for one in self.triggerer_pids() if pid in (None, one)]
        victims = [process for one in pids for process in processes.family(one)]
        if not victims:
            raise AirflowError("there is no triggerer to kill; start_triggerer() starts one")
        left = processes.end(lambda: [one for one in victims if processes.read(one.pid) == one], timeout=10)
        _all_killed(left, " of the triggerer")
        return [process.pid for process in victims]

    @retry(retry=_LOCKED, stop=stop_after_attempt(3), reraise=True)
    def start_triggerer(self, *, wait: bool = True) -> int:
        """Start one more `airflow triggerer` with the same environment, and return its pid.

        The triggers of a killed one come to it `takeover` seconds after that one's last heartbeat.

        Args:
            wait: return only when it is healthy.

        Raises:
            AirflowError: Airflow is not running, or the triggerer did not get healthy; with the log's end.
        """
        if self._standalone is None:
            raise AirflowError("Airflow is not running; start() it first")
        log = self.home / f"triggerer-{len(self._more) + 1}.log"
        since = datetime.now(UTC)
        started = self._spawn(["triggerer", "--skip-serve-logs"], log)
        self._more.append(started)

        def died() -> str | None:
            if started.poll() is None:
                return None
            return f"`airflow triggerer` ended with {started.returncode}; {processes.last_words(log)}"

        if wait:
            self._wait_healthy({"triggerer"}, since, died, log)
        return started.pid

    def command(self, *arguments: str, timeout: float = 120.0, env: Mapping[str, str] | None = None) -> str:
        """Run `airflow ARGUMENTS…` in this environment to its end, and return what it printed.

        Args:
            arguments: as in a shell, `command("config", "get-value", "core", "executor")`.
            timeout: seconds until it is killed.
            env: variables that differ for this command.

        Raises:
            AirflowError: it failed, or took too long.
        """
        return settings.run(self._program, arguments, {**self.environment, **(env or {})}, self.home, timeout)

    # -- inside ----------------------------------------------------------------------------------------------

    def _spawn(self, arguments: list[str], log: Path, program: Path | None = None) -> subprocess.Popen[bytes]:
        """Start `airflow ARGUMENTS` as the leader of a new session."""
        with log.open("ab") as output:
            started = subprocess.Popen(
                [str(program or self._program), *arguments],
                env=self.environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._sessions.note(started.pid)
        return started

    def _died(self) -> str | None:
        """What ended that should not have, with the end of the log; None where all is well."""
        if self._standalone is not None and self._standalone.poll() is not None:
            dead = f"`airflow standalone` ended with {self._standalone.returncode}"
        else:
            if not (parts := self.parts.ended()):
                return None
            dead = f"Airflow's {' and '.join(parts)} ended"
        return f"{dead}; {processes.last_words(self.log_path)}"

    def _wait_healthy(
        self, parts: set[str], since: datetime, died: Callable[[], str | None], log: Path
    ) -> None:
        """Wait until these parts are healthy with a heartbeat after `since`: older ones are of the dead."""
        waiting = set(parts)

        def probe() -> bool | None:
            if why := died():
                raise AirflowError(why)
            try:
                health = self.health()
                # What tasks talk to is made for the first who asks, on a busy machine for a minute: they would give up.
                self._http.get("/execution/health")
            except httpx.HTTPError:
                return None
            for part in sorted(waiting):
                beat = health[part].get(f"latest_{part}_heartbeat")
                if health[part]["status"] == "healthy" and beat and datetime.fromisoformat(beat) > since:
                    waiting.discard(part)
                    self.progress(f"Airflow's {part.replace('_', ' ')} is healthy")
            return None if waiting else True

        def hint() -> str:
            return f"{', '.join(sorted(waiting))} did not report; {processes.last_words(log)}"

        poll("Airflow to be healthy", probe, timeout=self.start_timeout, every=0.25, hint=hint)

    def _sweep(self) -> None:
        """End what an earlier Airflow left running here when its program was killed."""
        if not self._sessions.leftovers():
            return
        self.progress(f"ending what an earlier Airflow left running in {self.home}")
        left = processes.end(self._sessions.leftovers, timeout=10)
        _all_killed(left, f" of an earlier Airflow in {self.home}")


def _all_killed(left: list[processes.Process], of: str) -> None:
    """Raise AirflowError where something is left."""
    if left:
        raise AirflowError(f"could not kill the processes{of}: {', '.join(str(one.pid) for one in left)}")
