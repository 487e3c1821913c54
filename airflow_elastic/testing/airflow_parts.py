"""The parts of an Airflow of one's own, watched as liveness probes do in a Deployment.

`airflow standalone` does not start a part again that has ended. Where the scheduler has ended, the API server still
answers, and every run waits for ever. So scheduler and DAG processor start again here. If the API server has ended,
that is an error.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import httpx

from airflow_elastic.testing import airflow_settings as settings
from airflow_elastic.testing import processes
from airflow_elastic.testing.airflow_rest import AirflowBrokenError

PARTS = ("scheduler", "dag-processor", "api-server", "triggerer")
"""What `airflow standalone` starts."""

#: Those that start again. A test may kill the triggerer; without the API server nothing can be asked.
_AGAIN = ("scheduler", "dag-processor")

LOOK_SECONDS, HEALTH_SECONDS = 1.0, 5.0

Health = Mapping[str, Mapping[str, str | None]]


class Spawn(Protocol):
    """Starts `airflow ARGUMENTS`, whose output is added to a log."""

    def __call__(self, arguments: list[str], log: Path, program: Path) -> subprocess.Popen[bytes]: ...


class Parts:
    """Whether the parts live, and who starts them again.

    Args:
        state: the folder with the pid files.
        log: of `airflow standalone`; a part that starts again has its own beside it.
        sessions: those of this Airflow.
        spawn: starts a part.
        health: what Airflow says about its parts; raises httpx.HTTPError where it says nothing.
        progress: called with words for a person when a part starts again.
        restarts: how often one part may start again.
        hung_after: seconds without a heartbeat after which a living part is killed and starts again.
        start_timeout: seconds until the first heartbeat of one that started again.
    """

    def __init__(
        self,
        state: Path,
        log: Path,
        sessions: processes.Sessions,
        spawn: Spawn,
        health: Callable[[], Health],
        progress: Callable[[str], None],
        *,
        restarts: int,
        hung_after: float,
        start_timeout: float,
    ) -> None:
        self._state, self._log, self._sessions = state, log, sessions
        self._spawn, self._health, self.progress = spawn, health, progress
        self.most, self.hung_after, self._start_timeout = restarts, hung_after, start_timeout
        self._busy = threading.Lock()
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.forget()

    # -- what is known -----------------------------------------------------------------------------------------

    def pid(self, part: str) -> int | None:
        """The pid of a part (one of PARTS) that `airflow standalone` or `look` started; None where it does not live."""
        if (again := self._started.get(part)) is not None:
            return again.pid if processes.lives(again) else None
        try:
            pid = int(settings.pid_file(self._state, part).read_text())
        except (FileNotFoundError, ValueError):
            return None
        found = processes.read(pid)
        return pid if found is not None and found in self._sessions else None

    def ended(self) -> list[str]:
        """The parts that were started and do not live."""
        noted = [part for part in PARTS if settings.pid_file(self._state, part).exists()]
        return [part for part in noted if self.pid(part) is None]

    def last_words(self, part: str, lines: int = 30) -> str:
        """The end of what a part has logged, with the name of its log."""
        if part in self._started:
            return processes.last_words(self._own_log(part), lines)
        return processes.last_words(self._log, lines, begin=f"{part:10} |")

    def condition(self) -> str:
        """How all parts are, with the end of the log of those that are not well; for an error's text."""
        try:
            health = self._health()
        except httpx.HTTPError as error:
            health, said = {}, [f"Airflow does not say how its parts are: {error!r}"]
        else:
            said = []
        words = []
        for part in PARTS:
            status, beat = _of(health, part)
            text = f"{part} {'lives' if (lives := self.pid(part) is not None) else 'does not live'}"
            if status is not None:
                text += f", is {status}" + (f" ({_age(beat):.0f} s since its heartbeat)" if beat else "")
            if self.restarts[part]:
                text += f", started again {self.restarts[part]} times"
            said.append(text)
            if status == "unhealthy" or not (lives or part == "triggerer"):
                words.append(f"{part}: {self.last_words(part)}")
        return "\n".join([f"Airflow's parts: {'; '.join(said)}", *words])

    # -- what is done ------------------------------------------------------------------------------------------

    def watch(self, since: datetime) -> None:
        """Watch from now on; all parts have started after `since`, and are healthy."""
        self._since.update(dict.fromkeys(PARTS, since))
        self._watching = True

    def rest(self) -> None:
        """Start nothing from now on."""
        with self._busy:
            self._watching = False

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Start nothing within it: for a test that ends a part and wants it gone."""
        self.rest()
        try:
            yield
        finally:
            self._watching = True

    def forget(self) -> list[subprocess.Popen[bytes]]:
        """Begin from the start; returns what had been started again."""
        begun, self._started = list(self._started.values()), {}
        self._watching, self._broken = False, ""
        self._next_look = self._next_health = 0.0
        self.restarts: Counter[str] = Counter()
        self._since: dict[str, datetime] = {}
        self._silent: set[str] = set()
        return begun

    def give_up(self, why: str) -> None:
        """Raise AirflowBrokenError, now and whenever somebody looks again."""
        self._broken = why
        raise AirflowBrokenError(why)

    def look(self, *, at_once: bool = False) -> None:
        """See to the parts, about once a second, however often it is called.

        Raises:
            AirflowBrokenError: a part ended that does not start again, or has started again too often.
        """
        if self._broken:
            raise AirflowBrokenError(self._broken)
        if not (at_once or time.monotonic() >= self._next_look) or not self._busy.acquire(blocking=False):
            return
        try:
            if self._watching:
                self._see()
        finally:
            self._next_look = time.monotonic() + LOOK_SECONDS
            self._busy.release()

    def _see(self) -> None:
        if self.pid("api-server") is None:
            self.give_up(f"Airflow's api-server ended; {self.last_words('api-server')}")
        for part in _AGAIN:
            if self.pid(part) is None:
                self._again(part, "ended")
        if time.monotonic() < self._next_health:
            return
        self._next_health = time.monotonic() + HEALTH_SECONDS
        try:
            health = self._health()
        except httpx.HTTPError:
            return
        was, self._silent = self._silent, set()
        for part in _AGAIN:
            _, beat = _of(health, part)
            waiting = beat is None or beat <= self._since[part]
            age = _age(self._since[part] if waiting or beat is None else beat)
            if age > (self._start_timeout if waiting else self.hung_after):
                self._silent.add(part)
                if part in was:  # twice: not only the clock was set, or the machine stood still
                    self._again(part, f"had no heartbeat for {age:.0f} s")

    def _again(self, part: str, why: str) -> None:
        """Kill what is left of a part, and start it again."""
        words = self.last_words(part, 15)
        if self.restarts[part] >= self.most:
            self.give_up(f"Airflow's {part} {why}, after {self.restarts[part]} restarts; {words}")
        self.restarts[part] += 1
        number = f"restart {self.restarts[part]} of {self.most}"
        self.progress(f"Airflow's {part} {why}; it starts again ({number}); {words}")
        pid = self.pid(part)
        processes.end(lambda: (processes.family(pid) if pid else []) + self._orphans(), timeout=10)
        if (old := self._started.get(part)) is not None:
            old.poll()  # the kernel, too, is to forget it
        settings.pid_file(self._state, part).unlink(missing_ok=True)
        self._since[part] = datetime.now(UTC)
        self._started[part] = self._spawn([part], self._own_log(part), settings.shim_file(self._state))

    def _orphans(self) -> list[processes.Process]:
        """What a part has left in our sessions, as the workers of an executor."""
        members = self._sessions.members()
        known = {process.pid for process in members}
        return [one for one in members if one.parent not in known and one.pid != one.session]

    def _own_log(self, part: str) -> Path:
        return self._log.with_name(f"{part}.log")


def _of(health: Health, part: str) -> tuple[str | None, datetime | None]:
    """Status and last heartbeat; both None for a part that has none."""
    name = part.replace("-", "_")
    known = health.get(name, {})
    beat = known.get(f"latest_{name}_heartbeat")
    return known.get("status"), datetime.fromisoformat(beat) if beat else None


def _age(beat: datetime) -> float:
    return (datetime.now(UTC) - beat).total_seconds()
