"""The harness itself, on a real Airflow: what the other tests here take for granted."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_elastic.testing import airflow_rest, processes
from airflow_elastic.testing.airflow_parts import PARTS
from airflow_elastic.testing.airflow_rest import AirflowError, AirflowTimeoutError, poll
from airflow_elastic.testing.standalone import MARK, Standalone
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.machine.standstill import stand_still

DAGS = Path(__file__).parent / "dags"


def test_a_run_goes_through_and_can_be_read(standalone: Standalone) -> None:
    standalone.wait_for_dag("harness")
    run_id = standalone.trigger("harness", {"name": "Ada"})
    assert standalone.wait_run("harness", run_id) == "success"
    assert standalone.task_state("harness", run_id, "hello") == "success"
    assert standalone.xcom("harness", run_id, "hello") == "Ada"
    assert "hello Ada" in standalone.task_log("harness", run_id, "hello", try_number=1)


def test_mapped_tasks_are_told_apart(standalone: Standalone) -> None:
    standalone.wait_for_dag("harness_mapped")
    run_id = standalone.trigger("harness_mapped")
    standalone.wait_task("harness_mapped", run_id, "double", map_index=1)
    assert standalone.xcom("harness_mapped", run_id, "double", map_index=1) == 4
    assert "Returned value was: 4" in standalone.task_log("harness_mapped", run_id, "double", map_index=1)


def test_a_failed_task_is_reported_at_once_with_its_log(standalone: Standalone) -> None:
    standalone.wait_for_dag("harness_fails")
    run_id = standalone.trigger("harness_fails")
    with pytest.raises(AirflowError, match="RuntimeError: on purpose"):
        standalone.wait_task("harness_fails", run_id, "explode", timeout=PATIENCE_SECONDS)
    with pytest.raises(AirflowError, match="the log of explode ends"):
        standalone.wait_run("harness_fails", run_id)
    standalone.clear_task("harness_fails", run_id, "explode")
    standalone.wait_task("harness_fails", run_id, "explode", "failed")
    assert standalone.task("harness_fails", run_id, "explode")["try_number"] == 2


def test_a_deferred_task_can_be_marked_failed(standalone: Standalone) -> None:
    standalone.wait_for_dag("harness_defer_long")
    run_id = standalone.trigger("harness_defer_long")
    standalone.wait_task("harness_defer_long", run_id, "wait", "deferred")
    with pytest.raises(AirflowTimeoutError, match="it is 'deferred'; its log ends"):
        standalone.wait_task("harness_defer_long", run_id, "wait", timeout=0.1)
    standalone.set_task_state("harness_defer_long", run_id, "wait", "failed")
    assert standalone.task_state("harness_defer_long", run_id, "wait") == "failed"
    standalone.wait_run("harness_defer_long", run_id, "failed")


@pytest.mark.slow
def test_a_deferral_survives_its_triggerer(standalone: Standalone) -> None:
    standalone.wait_for_dag("harness_defer")
    run_id = standalone.trigger("harness_defer")
    standalone.wait_task("harness_defer", run_id, "wait", "deferred")

    def starts() -> int:
        return standalone.task_log("harness_defer", run_id, "wait").count("trigger starting")

    poll("the trigger to run", lambda: starts() or None, timeout=PATIENCE_SECONDS)
    before = standalone.triggerer_pids()
    killed = standalone.kill_triggerer()
    assert set(before) < set(killed), "the process that runs the triggers is killed too"
    assert standalone.triggerer_pids() == []
    assert standalone.task_state("harness_defer", run_id, "wait") == "deferred"
    replacement = standalone.start_triggerer()
    assert standalone.triggerer_pids() == [replacement]
    standalone.wait_run("harness_defer", run_id)
    assert starts() == 2


def test_a_missing_dag_is_explained(standalone: Standalone) -> None:
    with pytest.raises(AirflowTimeoutError, match=r"the DAG 'nonesuch'.*Airflow has read .*harness"):
        standalone.wait_for_dag("nonesuch", timeout=1)


def test_rest_errors_say_what_airflow_said(standalone: Standalone) -> None:
    with pytest.raises(AirflowError, match=r"GET /api/v2/dags/nonesuch: 404 .*nonesuch"):
        standalone.rest("GET", "dags/nonesuch")
    with pytest.raises(AirflowError, match="refused the login of 'admin'"):
        standalone.login(password="wrong")
    standalone._token = "of another server"
    assert standalone.rest("GET", "dags/harness")["dag_id"] == "harness"


def test_what_a_locked_database_refused_is_asked_again(standalone: Standalone) -> None:
    """Airflow's API server deadlocks with itself over SQLite now and then; a lock of ours has the same effect.

    No other part ends by it: the scheduler, for one, wants to start a run meanwhile.
    """
    before = {part: standalone.part_pid(part) for part in PARTS}
    standalone.wait_for_dag("harness")
    refused = standalone.log_path.read_text().count("Error with id")
    run_id = standalone.trigger("harness")
    with sqlite3.connect(standalone.home / "airflow.db") as database, ThreadPoolExecutor() as pool:
        database.execute("BEGIN IMMEDIATE")
        try:
            unpausing = pool.submit(standalone.unpause, "harness")
            poll(
                "two refusals",
                lambda: standalone.log_path.read_text().count("Error with id") > refused + 1 or None,
                timeout=PATIENCE_SECONDS,
            )
        finally:
            database.rollback()
        unpausing.result()
    assert standalone.rest("GET", "dags/harness")["is_paused"] is False
    standalone.wait_run("harness", run_id)
    assert {part: standalone.part_pid(part) for part in PARTS} == before


@pytest.fixture
def told(standalone: Standalone, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What progress reports. Restarts of this test do not count for others."""
    lines: list[str] = []
    monkeypatch.setattr(standalone.parts, "progress", lines.append)
    monkeypatch.setattr(standalone.parts, "restarts", Counter())
    return lines


@pytest.mark.parametrize("part", ["scheduler", "dag-processor"])
def test_a_part_that_died_starts_again(standalone: Standalone, told: list[str], part: str) -> None:
    standalone.wait_for_dag("harness")
    (victim, *_) = processes.family(standalone.part_pid(part) or 0)
    processes.send(victim, signal.SIGKILL)
    poll("it to be gone", lambda: processes.read(victim.pid) is None or None, timeout=PATIENCE_SECONDS)
    assert f"{part} does not live" in standalone.condition()
    standalone.wait_task("harness", standalone.trigger("harness"), "hello")
    assert told[0].startswith(f"Airflow's {part} ended; it starts again (restart 1 of 3); ")
    assert standalone.part_pid(part) not in (None, victim.pid)
    assert f"{part} lives" in standalone.condition()


def test_a_scheduler_that_hangs_starts_again(
    standalone: Standalone, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standalone.parts, "hung_after", 15.0)
    monkeypatch.setattr(standalone.parts, "most", 100)  # a machine may be so busy that others seem to hang
    standalone.wait_for_dag("harness")
    victims = processes.family(standalone.part_pid("scheduler") or 0)
    stand_still(standalone, victims)
    standalone.wait_task("harness", standalone.trigger("harness"), "hello")
    assert any(line.startswith("Airflow's scheduler had no heartbeat for ") for line in told), told
    assert all(processes.read(victim.pid) is None for victim in victims)


def test_a_part_may_be_wanted_dead(standalone: Standalone, told: list[str]) -> None:
    (victim, *_) = processes.family(standalone.part_pid("dag-processor") or 0)
    with standalone.parts.unwatched():
        processes.send(victim, signal.SIGKILL)
        poll("it to be gone", lambda: processes.read(victim.pid) is None or None, timeout=PATIENCE_SECONDS)
        standalone.look(at_once=True)
        assert standalone.part_pid("dag-processor") is None
    standalone.look(at_once=True)
    assert standalone.part_pid("dag-processor") is not None


def test_an_airflow_that_stands_still_is_given_less_time(
    standalone: Standalone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_rest, "_LONG_SECONDS", 0.1)
    monkeypatch.setattr(airflow_rest, "_SHORT_SECONDS", 0.2)
    for waited in ("1", "1", "0.2"):
        with pytest.raises(
            AirflowTimeoutError, match=rf"(?s)waited {waited} s for .*Airflow's parts: scheduler"
        ):
            standalone.wait_for_dag("nonesuch", timeout=1)
    standalone.wait_for_dag("harness")
    with pytest.raises(AirflowTimeoutError, match="waited 1 s for"):
        standalone.wait_for_dag("nonesuch", timeout=1)


def test_everything_listens_on_this_machine_only(standalone: Standalone) -> None:
    inodes = set()
    for process in standalone._sessions.members():
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
            except FileNotFoundError:
                continue
    table = (
        Path("/proc/net/tcp").read_text().splitlines()[1:]
        + Path("/proc/net/tcp6").read_text().splitlines()[1:]
    )
    listening = [row.split() for row in table if row.split()[3] == "0A" and row.split()[9] in inodes]
    assert {row[1].split(":")[0] for row in listening} == {"0100007F"}


@pytest.mark.slow
@pytest.mark.airflow
def test_it_starts_stops_and_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process of it is left; what lives in a session of its own does, unless it is asked away too."""
    monkeypatch.setenv("AIRFLOW__CORE__PARALLELISM", "0")  # A developer's own settings must not get in.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    dags = tmp_path / "dags of mine"
    dags.mkdir()
    (dags / "broken.py").write_text("from airflow.sdk import DAG\nraise ValueError('this DAG is broken')\n")
    lines: list[str] = []
    airflow = Standalone(
        tmp_path / "a home",
        dags,
        connections={"elastic_test": {"conn_type": "http", "host": "example.invalid"}},
        progress=lines.append,
    )
    with airflow:
        assert any("ready after" in line and airflow.password in line for line in lines)
        assert all(airflow.part_pid(part) for part in PARTS)
        with pytest.raises(AirflowError, match="this DAG is broken"):
            airflow.wait_for_dag("broken", timeout=PATIENCE_SECONDS)
        with pytest.raises(AirflowError, match="another program runs an Airflow in"):
            Standalone(tmp_path / "a home", dags).start()
        assert "example.invalid" in airflow.command("connections", "get", "elastic_test", "--output", "json")
        training = subprocess.Popen(["sleep", "600"], env=airflow.environment, start_new_session=True)
        assert [process.pid for process in airflow.detached()] == [training.pid]
        members = airflow._sessions.members()
    assert len(members) > len(PARTS)
    assert [one for one in members if processes.read(one.pid) == one] == []
    assert training.poll() is None

    first_password = airflow.password
    airflow.start()
    assert airflow.rest("GET", "dags")["dags"] == []
    assert Standalone(tmp_path / "a home", dags).password == first_password
    airflow.stop(detached=True)
    assert training.wait(10) == -signal.SIGKILL
    airflow.stop()


@pytest.mark.airflow
def test_the_successor_of_a_killed_program_ends_what_that_left(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from airflow_elastic.testing.standalone import Standalone\n"
        "Standalone(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), progress=print).start()\n"
    )
    home = tmp_path / "home"
    owner = subprocess.Popen([sys.executable, "-c", script, str(home), str(DAGS)])
    successor = Standalone(home, DAGS)
    state = home / "standalone" / "scheduler.pid"
    poll(
        "Airflow to start its parts", lambda: state.exists() or owner.poll() or None, timeout=PATIENCE_SECONDS
    )
    owner.kill()
    owner.wait()
    orphans = successor._sessions.leftovers()
    assert orphans
    successor.port = -1  # Enough of a start to sweep; it ends at the port.
    with pytest.raises(AirflowError, match="port: given -1"):
        successor.start()
    assert [one for one in orphans if processes.read(one.pid) == one] == []


@pytest.mark.airflow
def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    airflow = Standalone(
        tmp_path, DAGS, env={"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite:////nowhere/a.db"}
    )
    with pytest.raises(
        AirflowError, match=r"(?s)`airflow standalone` ended with \d.*unable to open database"
    ):
        airflow.start()
    assert [
        one for one in processes.living() if processes.has_environment(one.pid, f"{MARK}={tmp_path}")
    ] == []


def test_what_cannot_work_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(AirflowError, match=r"dags_folder: given .*; there is no such folder"):
        Standalone(tmp_path, tmp_path / "nonesuch")
    with pytest.raises(AirflowError, match="takeover: given 1; allowed: 5 s or more"):
        Standalone(tmp_path, DAGS, takeover=1)
    with pytest.raises(AirflowError, match="connections: given the id 'a-b'"):
        Standalone(tmp_path, DAGS, connections={"a-b": "http://x"})
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(AirflowError, match=rf"port: given {port}, which cannot be had"):
            Standalone(tmp_path, DAGS, port=port).start()


def test_another_database_is_given_nothing_that_is_for_sqlite(tmp_path: Path) -> None:
    database = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql+psycopg2://airflow@127.0.0.1/airflow"}
    assert "airflow_sqlite" not in str(Standalone(tmp_path, DAGS, env=database).environment)
    assert "airflow_sqlite" in str(Standalone(tmp_path, DAGS).environment)
