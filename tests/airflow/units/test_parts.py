"""The watch over Airflow's parts, on processes that are no Airflow."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_elastic.testing import airflow_parts, airflow_settings, processes
from airflow_elastic.testing.airflow_parts import PARTS, Health, Parts
from airflow_elastic.testing.airflow_rest import AirflowBrokenError
from tests.support.machine.patience import until

MARK = "TEST_OF_PARTS"


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look asks for heartbeats."""
    monkeypatch.setattr(airflow_parts, "HEALTH_SECONDS", 0.0)


class Place:
    """A folder with parts that sleep, and one log of all."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "standalone.log"
        self.sessions = processes.Sessions(folder / "sessions.json", f"{MARK}={folder}")
        self.started: list[subprocess.Popen[bytes]] = []
        self.alive = {part: self.start("sleep 600") for part in PARTS}
        for part, process in self.alive.items():
            airflow_settings.pid_file(folder, part).write_text(str(process.pid))
        self.log.write_text("".join(f"{part:10} | last words of {part}\n" for part in PARTS))
        self.lines: list[str] = []

    def start(self, script: str, log: Path | None = None) -> subprocess.Popen[bytes]:
        with (log or self.log).open("ab") as output:
            started = subprocess.Popen(["sh", "-c", script], start_new_session=True, stderr=output)
        self.started.append(started)
        self.sessions.note(started.pid)
        return started

    def parts(self, script: str, health: Callable[[], Health] = dict, **limits: float) -> Parts:
        """Watched parts, of which each starts again as this script."""

        def spawn(arguments: list[str], log: Path, program: Path) -> subprocess.Popen[bytes]:
            return self.start(script, log)

        known = {"hung_after": 60.0, "start_timeout": 60.0, **limits}
        parts = Parts(
            self.folder, self.log, self.sessions, spawn, health, self.lines.append, restarts=3, **known
        )
        parts.watch(datetime.now(UTC))
        return parts

    def kill(self, part: str) -> None:
        self.alive[part].kill()
        self.alive[part].wait()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    assert processes.end(place.sessions.members, timeout=10) == []
    for started in place.started:
        started.wait()


def look_until_given_up(parts: Parts) -> str:
    def look() -> str | None:
        try:
            parts.look(at_once=True)
        except AirflowBrokenError as error:
            return str(error)
        return None

    given_up: str = until(look, "it to be given up")
    with pytest.raises(AirflowBrokenError, match="after 3 restarts"):
        parts.look()
    return given_up


def test_a_part_that_ends_again_and_again_is_given_up(place: Place) -> None:
    parts = place.parts("echo the database is gone >&2; exit 1")
    parts.look(at_once=True)
    assert place.lines == []
    place.kill("scheduler")
    error = look_until_given_up(parts)
    assert error.startswith("Airflow's scheduler ended, after 3 restarts; ")
    assert error.endswith("scheduler.log ends:\n" + "\n".join(["the database is gone"] * 3))
    assert [line.partition(";")[0] for line in place.lines] == ["Airflow's scheduler ended"] * 3
    assert place.lines[0].endswith("standalone.log ends:\nscheduler  | last words of scheduler")
    assert "scheduler does not live, started again 3 times" in parts.condition()


def test_a_part_that_never_reports_is_given_up(place: Place) -> None:
    parts = place.parts("sleep 600 & sleep 600", start_timeout=-1.0)
    error = look_until_given_up(parts)
    assert error.startswith("Airflow's scheduler had no heartbeat for ")
    of_it = [one for one in place.sessions.members() if one.pid not in {p.pid for p in place.alive.values()}]
    roots = [one for one in of_it if one.pid == one.session]
    assert len(roots) == 2, "nothing is left of those that were killed"


def test_an_old_heartbeat_ends_a_part_and_a_young_one_does_not(place: Place) -> None:
    ages = {"scheduler": 30.0, "dag_processor": 90.0}

    def health() -> Health:
        now = datetime.now(UTC)
        return {
            part: {"status": "healthy", f"latest_{part}_heartbeat": str(now - timedelta(seconds=age))}
            for part, age in ages.items()
        }

    parts = place.parts("sleep 600", health)
    parts.watch(datetime.now(UTC) - timedelta(seconds=300))
    parts.look(at_once=True)
    assert place.lines == [], "one look is not enough"
    parts.look(at_once=True)
    assert [line.partition(" had no heartbeat for ")[0] for line in place.lines] == [
        "Airflow's dag-processor"
    ]
    ages["dag_processor"] = 0.0
    parts.look(at_once=True)
    parts.look(at_once=True)
    assert len(place.lines) == 1


def test_without_the_api_server_nothing_can_be_asked(place: Place) -> None:
    parts = place.parts("sleep 600")
    place.kill("api-server")
    with pytest.raises(AirflowBrokenError, match=r"(?s)api-server ended; .*last words of api-server"):
        parts.look(at_once=True)


def test_a_triggerer_is_left_dead(place: Place) -> None:
    parts = place.parts("sleep 600")
    place.kill("triggerer")
    parts.look(at_once=True)
    assert parts.ended() == ["triggerer"]
    assert place.lines == []


#: Its first thread ends, and others go on, as for a moment when a process with many threads is killed.
HALF_DEAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_threads_still_end_does_not_live() -> None:
    child = subprocess.Popen([sys.executable, "-c", HALF_DEAD])
    try:
        until(lambda: processes.read(child.pid) is None, "its first thread to end")
        assert child.poll() is None
        assert not processes.lives(child)
    finally:
        child.kill()
        child.wait()
