"""What a try of a task works on, in the triggerer and in a worker."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from airflow.sdk.exceptions import (
    AirflowFailException,
    TaskDeferred,
)

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.runs import Run
from airflow_elastic.core.state import Cause, Failure, FailureKind, Phase, RunState
from airflow_elastic.operators.task.attach import acknowledge, attach
from airflow_elastic.operators.task.foreground import Foreground
from airflow_elastic.operators.task.parameters import build_spec
from airflow_elastic.operators.task.result import failure
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import RunDiffers
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.triggers.task import task_key
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.runs.surface import SPEC, FakeHook, FakeTask, Log, begun, ended, operator

# -- what a try works on -----------------------------------------------------------------------------------------------


def test_another_run_at_the_uri_is_told_in_the_operators_words(hook: FakeHook, tmp_path: Path) -> None:
    uri = str(tmp_path / "r")
    begun(hook, uri, spec=RunSpec(("/train.py",), engine="fake", launcher="python"))
    with pytest.raises(AirflowFailException) as failed:
        operator(run_uri=uri, workers=2).execute({"ti": FakeTask()})
    assert "workers: 1 there, 2 asked for" in str(failed.value)
    assert str(failed.value).endswith("): start a new DAG run, or give another run_uri")


def test_tries_find_the_run_that_is_there(hook: FakeHook, tmp_path: Path) -> None:
    uri = str(tmp_path / "r")
    run = attach(hook, uri, SPEC, "try-1")
    assert attach(hook, uri, SPEC, "try-2").store.uri == run.store.uri
    assert (run.state.owner, len(run.state.attempts)) == ("try-2", 1)
    ended(run, "failed")
    assert attach(hook, uri, SPEC, "try-3").store.uri == run.store.uri
    assert (run.state.ended, run.state.owner, len(run.state.attempts)) == (False, "try-3", 2)
    with pytest.raises(RunDiffers, match=r"workers\.count: 1 there, 2 asked for"):
        attach(
            hook, uri, build_spec({"command": "train.py", "workers": 2, "engine": "fake"}, name="run"), "t"
        )


def test_a_success_is_handed_over_once_and_then_trained_anew(hook: FakeHook, tmp_path: Path) -> None:
    uri = str(tmp_path / "r")
    run = ended(attach(hook, uri, SPEC, "try-1"), "succeeded")
    again = attach(hook, uri, SPEC, "try-2")
    assert (again.store.uri, again.state.ended) == (uri, True)
    acknowledge(run, "try-2")
    fresh = attach(hook, uri, SPEC, "try-3")
    assert fresh.store.uri == f"{uri}~2"
    assert attach(hook, uri, SPEC, "try-4").store.uri == f"{uri}~2"
    acknowledge(ended(fresh, "succeeded"), "try-4")
    assert attach(hook, uri, SPEC, "try-5").store.uri == f"{uri}~3"


def test_the_task_defers_with_its_own_id_as_owner_and_pushes_the_run_at_once(hook: FakeHook) -> None:
    ti = FakeTask(id="11111111-2222")
    made = operator(engine="fake", aws_conn_id="aws")
    with pytest.raises(TaskDeferred) as deferred:
        made.execute({"ti": ti})
    uri = ti.xcoms["run_uri"]
    assert Run(open_store(uri)).state.owner == "11111111-2222"
    assert deferred.value.trigger.serialize()[1]["owner"] == "11111111-2222"
    assert deferred.value.method_name == "resume"
    assert deferred.value.timeout is None
    assert Run(open_store(uri)).state.task == task_key(ti)
    assert ti.xcoms.keys() == {"run_uri"}, "people may edit XComs: nothing that decides is kept there"


def test_the_result_is_read_from_the_run_and_acknowledged_last(hook: FakeHook, tmp_path: Path) -> None:
    run = ended(begun(hook, tmp_path / "r"), "succeeded")
    ti = FakeTask()
    broken = mock.Mock(side_effect=RuntimeError("XCom backend"))
    with mock.patch.object(FakeTask, "xcom_push", broken), pytest.raises(RuntimeError):
        operator().resume({"ti": ti}, {}, run.store.uri)
    assert not run.store.list(layout.ACKNOWLEDGED), "a retry gets the result that this try could not store"
    result = operator().resume({"ti": ti}, {"outcome": "failed"}, run.store.uri)
    assert result == {"run_uri": run.store.uri, "step": 0, "checkpoint": None, "metrics": {}, "attempts": 1}
    assert [entry.key for entry in run.store.list(layout.ACKNOWLEDGED)] == ["acknowledged/try-1"]


def test_a_run_that_was_reopened_in_between_is_waited_for_again(hook: FakeHook, tmp_path: Path) -> None:
    run = begun(hook, tmp_path / "r")
    with pytest.raises(TaskDeferred):
        operator().resume({"ti": FakeTask()}, {"outcome": "failed"}, run.store.uri)


@pytest.mark.parametrize(
    ("cause", "kind", "outcome", "final"),
    [
        (Cause.FAILURE, FailureKind.CODE_ERROR, "failed", True),
        (Cause.FAILURE, FailureKind.CRASHED, "failed", True),
        (Cause.FAILURE, FailureKind.REFUSED, "failed", True),
        (Cause.FAILURE, FailureKind.BAD_INPUT, "failed", True),
        (Cause.FAILURE, FailureKind.BAD_ARGUMENTS, "failed", True),
        (Cause.FAILURE, FailureKind.CANNOT_START, "failed", True),
        (Cause.FAILURE, FailureKind.WORKER_LOST, "failed", False),
        (Cause.FAILURE, FailureKind.NO_PROGRESS, "failed", False),
        (Cause.FAILURE, FailureKind.OUT_OF_MEMORY, "failed", False),
        (Cause.DEADLINE, None, "failed", False),
        (Cause.STOP, None, "stopped", True),
    ],
)
def test_only_what_another_try_would_meet_again_uses_up_all_tries(
    hook: FakeHook, tmp_path: Path, cause: Cause, kind: FailureKind | None, outcome: str, final: bool
) -> None:
    run = ended(begun(hook, tmp_path), outcome, "the reason")
    evidence = kind and Failure(kind, "r", worker="node-1", rank=1, traceback="Traceback: X\n  Y")
    state: RunState = run.state.with_attempt(cause=cause, failure=evidence)
    log = Log()
    error = failure(run, state, log)
    assert isinstance(error, AirflowFailException) is final
    assert "the reason" in str(error)
    hung = kind is FailureKind.NO_PROGRESS
    head = "where its ranks stood" if hung else "rank 1 on node-1, the first to fail"
    assert (f"{head}:\nTraceback: X\n  Y" in log.text) is (kind is not None)


# -- deferrals that end badly ------------------------------------------------------------------------------------------


def test_a_deferral_that_times_out_ends_the_run(hook: FakeHook, tmp_path: Path) -> None:
    """Airflow calls no on_kill then. Without the override the run would train on with nobody watching."""
    run = begun(hook, tmp_path)
    context = {"ti": FakeTask(max_tries=3, xcoms={"run_uri": "/somebody/elses"})}
    with pytest.raises(AirflowFailException, match="saved and ended"):
        operator(run_uri=str(tmp_path)).resume_execution("__fail__", {"error": "Trigger timeout"}, context)
    assert (run.state.outcome, run.state.reason) == ("stopped", "stopped by Airflow: the deferral timed out")


@pytest.mark.parametrize(("number", "outcome"), [(1, None), (2, "stopped")])
def test_a_trigger_that_died_leaves_the_run_to_the_next_try_if_there_is_one(
    hook: FakeHook, tmp_path: Path, number: int, outcome: str | None
) -> None:
    run = begun(hook, tmp_path)
    context = {"ti": FakeTask(try_number=number, max_tries=1, xcoms={"run_uri": "/somebody/elses"})}
    with pytest.raises(Exception, match="Trigger failure"):
        operator(run_uri=str(tmp_path)).resume_execution("__fail__", {"error": "Trigger failure"}, context)
    assert run.state.outcome == outcome


# -- in a worker -------------------------------------------------------------------------------------------------------


def _foreground(hook: FakeHook, run: Run) -> Foreground:
    return Foreground(hook, run, FakeTask(id="try-1"), Log(), poll_seconds=0.05)


@contextlib.contextmanager
def _signalled(run: Run, handler: Callable[[], object]) -> Iterator[None]:
    """Call this in a signal handler, on top of the main thread, once workers live."""

    def send() -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while run.state.attempt.phase is not Phase.LIVE and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: handler())
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)


def test_on_kill_ends_the_run_inside_a_signal_handler(hook: FakeHook, tmp_path: Path) -> None:
    """Airflow calls it there, on top of `drive`, and kills before any `finally`. Without the thread, which goes on
    meanwhile, the run could not be ended: the loop that drives it would be what the handler interrupts."""
    run = begun(hook, tmp_path)
    foreground = _foreground(hook, run)
    ended_in_time: list[bool] = []
    with _signalled(run, lambda: ended_in_time.append(foreground.stop("Airflow: the task was ended"))):
        assert foreground.drive().outcome == "stopped"
    assert ended_in_time == [True]
    assert run.state.reason == "stopped by Airflow: the task was ended"


def test_a_timeout_ends_the_run_and_is_passed_on(hook: FakeHook, tmp_path: Path) -> None:
    """With Thread.join the thread would seem dead after the interruption (Python 3.11), and the run would go on."""

    class Timeout(BaseException):
        pass

    def interrupt() -> None:
        raise Timeout

    run = begun(hook, tmp_path)
    with _signalled(run, interrupt), pytest.raises(Timeout):
        _foreground(hook, run).drive()
    assert (run.state.outcome, run.state.reason) == (
        "stopped",
        "stopped by Airflow: the task was interrupted (Timeout)",
    )
