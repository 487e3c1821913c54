"""The real controller on the real local engine, killed at every journal write and every engine call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.host import processes
from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import Run, open_run, start_run
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.run import Health, RestartPolicy, RunSpec, ScaleStep, Workers
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.runs.traces import trained_once

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests/support/scripts/steps.py"
NEVER = 10_000


def begin(uri: Path, **changes: Any) -> Run:
    defaults: dict[str, Any] = {
        "command": (str(SCRIPT), "--die"),
        "launcher": "python",
        "workers": Workers(2, min=1, max=3),
        "restart": RestartPolicy(backoff_limit=2),
    }
    return start_run(open_store(str(uri)), RunSpec(**{**defaults, **changes}))


def controller(uri: Path, point: int = NEVER) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.support.runs.crashing", str(uri), str(point)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, output.decode()


def check(run: Run, uri: Path, attempts: int) -> None:
    """The same end as if nothing had happened to the controller."""
    state = run.state
    assert (state.outcome, len(state.attempts)) == ("succeeded", attempts), state.reason
    assert state.restarts_used == 1
    assert checkpoints.steps(run.store) == [5, 10, 15, 20]
    assert processes.marked("AIRFLOW_ELASTIC_LOCAL_RUN", f"{uri}/local") == []
    trained_once(uri)


def points() -> range:
    """As many as an undisturbed run has, and a few more, which then kill nobody."""
    return range(int(os.environ.get("ELASTIC_TEST_CRASH_POINTS", "46")))


@pytest.mark.siblings
@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=pytest.mark.slow) if point % 8 else point for point in points()]
)
def test_killed_at_every_point_and_replaced(point: int, tmp_path: Path) -> None:
    run = begin(tmp_path)
    code, output = finish(controller(tmp_path, point))
    assert code in (-9, 0), output
    code, output = finish(controller(tmp_path))
    assert code == 0, output
    check(run, tmp_path, attempts=2)


@pytest.mark.parametrize(
    "point",
    [pytest.param(point, marks=pytest.mark.slow) if point % 24 != 3 else point for point in points()[3::6]],
)
def test_killed_beside_another_one(point: int, tmp_path: Path) -> None:
    run = begin(tmp_path)
    one, other = controller(tmp_path, point), controller(tmp_path)
    code, output = finish(other)
    assert code == 0, output
    code, output = finish(one)
    assert code in (-9, 0), output
    check(run, tmp_path, attempts=2)


def test_the_points_cover_the_whole_run(tmp_path: Path) -> None:
    run = begin(tmp_path)
    code, output = finish(controller(tmp_path))
    assert code == 0, output
    assert int(output) <= len(points()), "an undisturbed run has more points than are tried"
    check(run, tmp_path, attempts=2)


@pytest.mark.siblings
@pytest.mark.parametrize("point", [4, 5, 6, 7])
def test_killed_around_a_scale_step(point: int, tmp_path: Path) -> None:
    """The python launcher cannot scale in place, so the step is a new attempt, which costs no restart."""
    run = begin(tmp_path, command=(str(SCRIPT),), scaling=(ScaleStep(1, after_seconds=0.3),))
    finish(controller(tmp_path, point))
    code, output = finish(controller(tmp_path))
    assert code == 0, output
    assert (run.state.outcome, run.state.restarts_used) == ("succeeded", 0)
    assert open_run(str(tmp_path)).state.attempts[-1].workers == 1
    assert processes.marked("AIRFLOW_ELASTIC_LOCAL_RUN", f"{tmp_path}/local") == []


@pytest.mark.siblings
@pytest.mark.parametrize(
    "point", [9, 13, *(pytest.param(point, marks=pytest.mark.slow) for point in (8, 10, 11, 12, 14, 15))]
)
def test_killed_around_a_restart_in_place(point: int, tmp_path: Path) -> None:
    """With the launcher torchrun the agents outlive the rank that dies, and the next attempt begins in their job."""
    # Its ranks do not meet: they have to start at once, and not when each of them has torch, which it never asks for.
    run = begin(tmp_path, launcher="torchrun", launcher_options={"start": "cold"})
    finish(controller(tmp_path, point))
    code, output = finish(controller(tmp_path))
    assert code == 0, output
    check(run, tmp_path, attempts=2)
    assert run.state.attempt.home == 1


@pytest.mark.siblings
@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=pytest.mark.slow) if p % 5 else p for p in range(4, 26)]
)
def test_killed_around_standby_workers(point: int, tmp_path: Path) -> None:
    """They are asked for, one takes the place of a lost worker, and another one is asked for."""
    workers = Workers(2, min=1, max=3, standby=1)
    options = {"start": "cold"}
    run = begin(
        tmp_path,
        command=(str(SCRIPT), "--die-agent"),
        launcher="torchrun",
        launcher_options=options,
        workers=workers,
    )
    finish(controller(tmp_path, point))
    code, output = finish(controller(tmp_path))
    assert code == 0, output
    check(run, tmp_path, attempts=2)
    assert run.state.attempt.home == 1
    events = [event for event in Journal(run.store).read() if isinstance(event, ev.StandbyAsked)]
    numbers = [number for event in events for number in event.workers]
    assert len(numbers) == len(set(numbers)), "no number is asked for twice"


#: Ranks that are forks hang before their first step.
HANGS = """
import signal, sys
forked = "torch" in sys.modules
import airflow_elastic.runtime as elastic
run = elastic.init()
while forked: signal.pause()
run.step()
run.finish()
"""


@pytest.mark.siblings
@pytest.mark.parametrize(
    "point", [5, 7, *(pytest.param(point, marks=pytest.mark.slow) for point in (4, 6, 8, 9, 10, 11))]
)
def test_killed_around_a_hang_of_forks(point: int, tmp_path: Path) -> None:
    """It decides that ranks start cold, and then writes the event: one hang is enough, whoever tells of it."""
    (tmp_path / "hangs.py").write_text(HANGS)
    run = begin(
        tmp_path / "run",
        command=(str(tmp_path / "hangs.py"),),
        launcher="torchrun",
        workers=Workers(1),
        health=Health(start_seconds=15.0),
    )
    code, output = finish(controller(tmp_path / "run", point))
    assert code == -9, output
    code, output = finish(controller(tmp_path / "run"))
    assert code == 0, output
    state = run.state
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("succeeded", 2, 1), state.reason
    hangs = [event for event in Journal(run.store).read() if isinstance(event, ev.Stalled)]
    assert [(event.attempt, event.of_fork) for event in hangs] == [(1, True)]
    assert processes.marked("AIRFLOW_ELASTIC_LOCAL_RUN", f"{tmp_path}/run/local") == []
