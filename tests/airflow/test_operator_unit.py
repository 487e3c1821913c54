"""The operator, the triggers, the hook and the sensor without Airflow's services."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from airflow.sdk import DAG, BaseHook, Connection
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    TaskDeferred,
)

from airflow_elastic.adapters import plugins
from airflow_elastic.adapters.journal import Journal
from airflow_elastic.adapters.mailbox import Mailbox
from airflow_elastic.adapters.stores import open_store
from airflow_elastic.control.runs import Run, start_run
from airflow_elastic.core.document import document
from airflow_elastic.core.state import Cause, Failure, FailureKind, Phase, RunState
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.operators import ElasticTrainOperator
from airflow_elastic.operators.attach import acknowledge, attach
from airflow_elastic.operators.foreground import Foreground
from airflow_elastic.operators.link import ElasticRunLink
from airflow_elastic.operators.parameters import PATHS, build_spec, slug
from airflow_elastic.operators.result import failure
from airflow_elastic.provider_info import get_provider_info
from airflow_elastic.sensors import ElasticRunSensor
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput, RunDiffers, SpecError
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.status import (
    JobStatus,
    Progress,
    Stretch,
    Wait,
    Waiting,
    WorkerPhase,
    WorkerStatus,
)
from airflow_elastic.testing.fake_engine import FakeEngine
from airflow_elastic.triggers import ElasticRunReachedTrigger, ElasticRunTrigger
from airflow_elastic.triggers import run as run_trigger
from airflow_elastic.triggers.abandoned import end_if_abandoned
from airflow_elastic.triggers.driving import drive, stop
from airflow_elastic.triggers.observer import TaskObserver
from airflow_elastic.triggers.output import LINES, RankOutput
from airflow_elastic.triggers.plain import require_plain
from airflow_elastic.triggers.target import OutOfReach, Target, reached
from airflow_elastic.triggers.task import GONE

SPEC = RunSpec(("train.py",), engine="fake", launcher="python")


class Log:
    """A task's log that keeps what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, event: str, *args: object) -> None:
        self.lines.append(event % args)

    warning = error = info

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class FakeHook(ElasticHook):
    """Runs in folders, workers in memory."""

    def engine(self, name: str, uri: str = "") -> Any:
        return FakeEngine()


@dataclass
class FakeTask:
    """A task instance, as far as the operator looks at it."""

    id: str = "try-1"
    dag_id: str = "a dag"
    task_id: str = "train"
    run_id: str = "manual__2026-01-01T00:00:00+00:00"
    map_index: int = -1
    try_number: int = 1
    max_tries: int = 0
    xcoms: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def xcom_pull(self, key: str, **_: Any) -> Any:
        return self.xcoms.get(key)


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of these tests is installed."""
    real = plugins._names
    monkeypatch.setattr(plugins, "_names", lambda group: [*real(group), "fake"])


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHook:
    """Also what operators and triggers make of their connection ids."""
    made = FakeHook()
    made.__dict__["settings"] = mock.Mock(run_root=str(tmp_path), engine="fake", aws_conn_id=None)
    monkeypatch.setattr(ElasticTrainOperator, "_hook", lambda self: made)
    monkeypatch.setattr(ElasticRunTrigger, "_hook", lambda self: made)
    monkeypatch.setattr(ElasticRunTrigger, "task_instance", FakeTask())
    return made


def operator(**changes: Any) -> ElasticTrainOperator:
    return ElasticTrainOperator(
        **{"task_id": "train", "command": ["/train.py"], "launcher": "python", "poll_interval": 0.05}
        | changes
    )


def begun(hook: FakeHook, uri: Path | str, owner: str = "try-1", spec: RunSpec = SPEC) -> Run:
    return start_run(hook.open_store(str(uri)), spec, owner=owner, engine=FakeEngine())


def ended(run: Run, outcome: str, reason: str = "because") -> Run:
    journal = Journal(run.store)
    assert journal.append(len(journal.read()), ev.RunEnded(time.time(), outcome, reason))
    return run


# -- parameters --------------------------------------------------------------------------------------------------


def test_bad_values_are_refused_when_the_dag_is_parsed_each_under_its_own_name() -> None:
    with pytest.raises(SpecError) as refused:
        operator(
            workers=2,
            min_workers=3,
            checkpoint_every_seconds=timedelta(0),
            restart_policy="Sometimes",
            cleanup="Some",
            secrets=[{"name": "TOKEN", "source": "env", "keys": "X"}],
        )
    text = str(refused.value)
    for part in (
        "train.min_workers: given 3; allowed: at most workers, which is 2",
        "train.checkpoint_every_seconds: given 0.0; allowed: a finite number greater than 0",
        "train.restart_policy: given 'Sometimes'",
        "train.secrets.0.keys: there is no such field",
        "train.cleanup: given 'Some'",
    ):
        assert part in text
    with pytest.raises(SpecError, match=r"train\.command: .*No closing quotation"):
        operator(command="train.py 'x")


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (
            {"poll_interval": "5s"},
            "train.poll_interval: given '5s'; allowed: seconds, a finite number of at least",
        ),
        ({"poll_interval": 0}, "train.poll_interval: given 0"),
        ({"poll_interval": True}, "train.poll_interval: given True"),
        ({"poll_interval": None}, "train.poll_interval: given None"),
        ({"poll_interval": float("nan")}, "train.poll_interval: given nan"),
        ({"poll_interval": object()}, "train.poll_interval: given <object"),
        ({"poll_interval": timedelta(0)}, "train.poll_interval: given datetime.timedelta(0)"),
        ({"deferrable": "no"}, "train.deferrable: given 'no'; allowed: True or False"),
        ({"elastic_conn_id": None}, "train.elastic_conn_id: given None; allowed: the id of a connection"),
        ({"elastic_conn_id": ""}, "train.elastic_conn_id: given ''"),
        ({"aws_conn_id": 3}, "train.aws_conn_id: given 3; allowed: the id of a connection, or None"),
        ({"active_deadline": "5s", "execution_timeout": timedelta(1)}, "train.active_deadline: given '5s'"),
        ({"engine": "locla"}, "train.engine: given 'locla'; allowed: one of "),
        ({"launcher": "torchrn"}, "did you mean torchrun?"),
        (
            {"run_uri": "runs/x"},
            "train.run_uri: given 'runs/x'; allowed: an absolute path, or s3://bucket/prefix: a",
        ),
        (
            {"run_uri": "ftp://x/y"},
            "train.run_uri: 'ftp://x/y' cannot be a run URI: there is no store for ftp://",
        ),
        ({"run_uri": 3}, "train.run_uri: given 3"),
        (
            {"command": ["/train.py", "--epochs", 3]},
            "train.command.2: given 3; allowed: text: put it in quotes",
        ),
        ({"command": ["/train.py", None]}, "train.command.1: given None; allowed: a string"),
        ({"backoff_limit": "{{ params.limit }}"}, "train.backoff_limit: given '{{ params.limit }}'"),
        ({"workers": 2, "scaling": [{"workers": 9, "at_step": 1}]}, "raise max_workers for more"),
        ({"restart_policy": "Always", "backoff_limit": 0}, "a backoff_limit or active_deadline with Always"),
    ],
)
def test_every_parameter_is_judged_when_the_dag_is_parsed(bad: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError) as refused:
        operator(**bad)
    assert told in str(refused.value)
    assert len(refused.value.problems) == 1


def test_a_template_hides_no_other_bad_value() -> None:
    with pytest.raises(SpecError) as refused:
        operator(
            command="train.py 'x",
            workers="{{ params.workers }}",
            min_workers=5,  # may well do: it depends on the template
            max_workers=6,
            run_uri="{{ params.uri }}",
            engine="{{ params.engine }}",
            cleanup="Some",
            checkpoint_every_steps=1.5,
            checkpoint_every_seconds=0,
        )
    told = [problem.path for problem in refused.value.problems]
    assert sorted(told) == [
        f"train.{name}"
        for name in ("checkpoint_every_seconds", "checkpoint_every_steps", "cleanup", "command")
    ]
    operator(command=["{{ params.script }}"], workers="{{ params.workers }}", min_workers=5, max_workers=6)


def test_looking_at_the_names_of_engines_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be heavy, and every DAG file with the operator in it is parsed all the time."""
    monkeypatch.setattr("airflow_elastic.adapters.plugins.load", mock.Mock(side_effect=AssertionError))
    operator(engine="local", launcher="torchrun")
    operator(engine="no_such.module:Engine", launcher="no_such.module:LAUNCHER")
    began = time.perf_counter()
    for _ in range(20):
        operator(engine="local", launcher="torchrun")
    assert (time.perf_counter() - began) / 20 < 0.01


def test_a_relative_run_uri_is_refused_wherever_it_comes_from(hook: FakeHook) -> None:
    late = operator(run_uri="{{ params.uri }}")
    late.run_uri = "runs/x"
    with pytest.raises(AirflowFailException, match="run_uri: given 'runs/x'; allowed: an absolute path"):
        late.execute({"ti": FakeTask()})
    hook.__dict__["settings"].run_root = "runs"
    with pytest.raises(AirflowFailException, match="run_root: given 'runs'; allowed: an absolute path"):
        operator().execute({"ti": FakeTask()})
    with pytest.raises(SpecError, match=r"s\.run_uri: given 'runs/x'"):
        ElasticRunSensor(task_id="s", run_uri="runs/x")


def test_templated_values_are_checked_when_the_task_begins(hook: FakeHook) -> None:
    late = operator(workers="{{ params.workers }}")
    late.workers = "0"  # what rendering makes of it
    with pytest.raises(AirflowFailException, match="workers: given 0; allowed: an integer, at least 1"):
        late.execute({"ti": FakeTask()})
    assert not list(Path(hook.run_root).iterdir()), "nothing was created"


def test_every_parameter_reaches_the_specification() -> None:
    given: dict[str, Any] = {
        "command": "train.py --name 'a b'",
        "workers": "4",
        "min_workers": 2,
        "max_workers": 8,
        "procs_per_worker": 2,
        "node_unit": 2,
        "worker_resources": {"cpu": "2"},
        "launcher": "accelerate",
        "launcher_options": {"a": 1},
        "engine": "local",
        "engine_options": {"python": "/usr/bin/python3"},
        "working_dir": Path("/w"),
        "checkpoint_every_steps": 10,
        "checkpoint_every_seconds": timedelta(minutes=1),
        "keep_checkpoints": 5,
        "checkpoint": {"keep_best": "min loss"},
        "restart_policy": "ExitCode",
        "restart_exit_codes": [3],
        "backoff_limit": 2,
        "no_progress_timeout": 1,
        "start_timeout": 2,
        "grace_period": 3,
        "unattended_timeout": 900,
        "active_deadline": timedelta(hours=1),
        "cleanup": "All",
        "scaling": [{"workers": 6, "at_step": 3}],
        "env": {"A": "b"},
        "secrets": [{"name": "T", "source": "env", "key": "K"}],
    }
    assert given.keys() == PATHS.keys()
    spec = build_spec(given, name="n")
    assert spec.command == ("train.py", "--name", "a b")
    assert (spec.workers.count, spec.workers.at_least, spec.workers.at_most) == (4, 2, 8)
    assert spec.active_deadline_seconds == 3600
    plain = spec.to_dict()
    for path in PATHS.values():
        value: Any = plain
        for part in path.split("."):
            value = value[part]


def test_all_that_the_policy_of_checkpoints_has_can_be_said() -> None:
    further = {
        "keep_every_steps": 1000,
        "keep_best": "max accuracy",
        "overlap": True,
        "account_samples": True,
    }
    given = {
        "command": ["train.py"],
        "keep_checkpoints": 2,
        "checkpoint_every_steps": 10,
        "checkpoint": further,
    }
    assert build_spec(given, name="n").checkpoint == CheckpointPolicy(every_steps=10, keep_last=2, **further)  # type: ignore[arg-type]
    wrong = {"keep_best": "accuracy", "newest": 3, "every_steps": 4}
    with pytest.raises(SpecError) as refused:
        build_spec({**given, "checkpoint": wrong}, name="n")
    assert {problem.path for problem in refused.value.problems} == {
        "checkpoint.every_steps",
        "checkpoint.keep_best",
        "checkpoint.newest",
    }
    with pytest.raises(SpecError, match="checkpoint"):
        build_spec({**given, "checkpoint": "often"}, name="n")


def test_every_path_is_templated_and_every_template_field_is_an_attribute() -> None:
    assert {"command", "run_uri", "working_dir", "env", "engine_options", "secrets"} <= set(
        ElasticTrainOperator.template_fields
    )
    made = operator()
    assert all(hasattr(made, name) for name in ElasticTrainOperator.template_fields)


@pytest.mark.parametrize(
    ("own", "execution_timeout", "deferrable", "deadline"),
    [
        (None, None, True, None),
        (30, None, True, 30),
        (timedelta(seconds=30), timedelta(seconds=20), True, 20),
        (30, timedelta(hours=1), True, 30),
        (None, timedelta(seconds=20), True, 20),
        (30, timedelta(seconds=20), False, 30),
    ],
)
def test_execution_timeout_becomes_the_deadline_of_a_deferrable_task(
    own: Any, execution_timeout: timedelta | None, deferrable: bool, deadline: float | None
) -> None:
    """Airflow does not enforce it while a task is deferred."""
    made = operator(active_deadline=own, execution_timeout=execution_timeout, deferrable=deferrable)
    assert made._deadline() == deadline


def test_a_relative_script_lies_beside_its_dag() -> None:
    with DAG("d", schedule=None):
        made = operator(command=["train.py"], engine="local")
        pods = operator(command=["train.py"], engine="job", task_id="pods")
    spec = made._spec({"ti": FakeTask()}, ElasticHook())
    assert spec.working_dir == str(Path(__file__).parent)
    assert operator(engine="local")._spec({"ti": FakeTask()}, ElasticHook()).working_dir is None
    assert pods._spec({"ti": FakeTask()}, ElasticHook()).working_dir is None, "no pod has the DAG's folder"


def test_run_uris_differ_wherever_tasks_do_and_not_between_tries(hook: FakeHook) -> None:
    def uri(**changes: Any) -> str:
        return operator()._run_uri({"ti": FakeTask(**changes)}, hook)

    assert uri(try_number=1) == uri(try_number=2, id="try-2")
    uris = [uri(), uri(run_id="manual__2026-01-01T00-00-00-00-00"), uri(map_index=0), uri(map_index=1)]
    uris += [uri(dag_id="a-dag"), uri(task_id="group.train"), uri(task_id="..")]
    assert len(set(uris)) == len(uris)
    for one in uris:
        assert open_store(one).uri == one
    assert slug("plain-1.2_x") == "plain-1.2_x"
    assert slug("ä/b") != slug("ö/b")


# -- triggers ----------------------------------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    "poison",
    [object(), {1, 2}, (1,), Path("/x"), b"x", {1: 2}, Colour.RED, float("nan"), [{"a": [object()]}]],
)
def test_what_is_no_plain_json_is_named_and_refused(poison: object) -> None:
    with pytest.raises(InvalidInput, match=r"run_uri.*allowed: str, int, float, bool, None, lists and dicts"):
        require_plain({"run_uri": poison})


def test_the_operator_refuses_to_defer_with_poison(hook: FakeHook) -> None:
    made = operator(engine="fake", poll_interval=timedelta(seconds=1))
    assert made.poll_interval == 1.0
    made.poll_interval = timedelta(seconds=1)
    with pytest.raises(AirflowFailException, match=r"poll_seconds: datetime\.timedelta.* is a timedelta"):
        made.execute({"ti": FakeTask()})


def test_triggers_survive_the_database_and_hold_no_secret() -> None:
    for trigger in (
        ElasticRunTrigger("/r", "try-1", "conn", "aws", 1.0),
        ElasticRunReachedTrigger("/r", step=3, aws_conn_id="aws"),
    ):
        path, kwargs = trigger.serialize()
        assert path == f"{type(trigger).__module__}.{type(trigger).__qualname__}"
        again = type(trigger)(**json.loads(json.dumps(kwargs)))
        assert again.serialize() == (path, kwargs)
    assert ElasticRunTrigger("/r", "o").serialize()[1].keys() == {
        "run_uri",
        "owner",
        "elastic_conn_id",
        "aws_conn_id",
        "poll_seconds",
    }


async def test_an_event_is_never_early_and_holds_nothing_of_the_script(
    hook: FakeHook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the delay an event can meet a scheduler that still believes the task queued, and fail it."""
    assert run_trigger.EARLIEST_EVENT_SECONDS >= 6.0
    monkeypatch.setattr(run_trigger, "EARLIEST_EVENT_SECONDS", 0.4)
    ended(begun(hook, tmp_path / "r"), "failed", "rank 0 failed: password is hunter2")
    trigger = ElasticRunTrigger(str(tmp_path / "r"), "try-1", poll_seconds=0.05)
    began = time.monotonic()
    events = [event async for event in trigger.run()]
    assert time.monotonic() - began >= 0.4
    (event,) = events
    assert event.payload == {"run_uri": str(tmp_path / "r"), "outcome": "failed"}


async def test_a_run_that_was_removed_is_told_in_the_event(
    hook: FakeHook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_trigger, "EARLIEST_EVENT_SECONDS", 0.0)
    trigger = ElasticRunTrigger(str(tmp_path / "gone"), "try-1")
    (event,) = [event async for event in trigger.run()]
    assert "holds no run" in event.payload["error"]
    with pytest.raises(AirflowException, match="holds no run"):
        operator().resume({"ti": FakeTask()}, event.payload, str(tmp_path / "gone"))


# -- who ends a run whose trigger was cancelled ------------------------------------------------------------------


async def _abandoned(
    hook: FakeHook, run: Run, *states: Any, owner: str = "try-1", newest: str | None = None, wait: float = 0.0
) -> bool:
    told = iter(states)
    last: Any = states[-1]

    async def task_state() -> Any:
        nonlocal last
        last = next(told, last)
        if isinstance(last, Exception):
            raise last
        return last

    async def task_owner() -> str | None:
        return newest or owner

    return await end_if_abandoned(
        hook,
        run.store.uri,
        owner,
        task_state=task_state,
        task_owner=task_owner,
        log=Log(),
        takeover_seconds=wait,
    )


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed", GONE])
async def test_nobody_waits_for_it_any_more(hook: FakeHook, tmp_path: Path, state: str) -> None:
    run = begun(hook, tmp_path)
    assert await _abandoned(hook, run, state)
    assert run.state.outcome == "stopped"
    assert run.state.attempt.phase is Phase.GONE


async def test_a_hand_over_leaves_it_alone(hook: FakeHook, tmp_path: Path) -> None:
    """Without this, each move of a trigger between triggerers would end a training."""
    run = begun(hook, tmp_path)
    assert not await _abandoned(hook, run, "deferred")
    assert not run.state.ended
    assert Mailbox(run.store).read() == []


@pytest.mark.parametrize("state", ["failed", "success", None, GONE, "running"])
async def test_the_run_of_somebody_else_is_left_alone(
    hook: FakeHook, tmp_path: Path, state: str | None
) -> None:
    """Two tasks with one run_uri, or a shell."""
    run = begun(hook, tmp_path)
    begun(hook, tmp_path, owner="try-2")
    async with asyncio.timeout(10):
        assert not await _abandoned(hook, run, state, wait=60.0)
    assert not run.state.ended
    assert Mailbox(run.store).read() == []


@pytest.mark.parametrize("state", ["deferred", None, "running", "queued"])
async def test_the_run_of_another_try_is_left_alone(
    hook: FakeHook, tmp_path: Path, state: str | None
) -> None:
    """A clear races the old trigger's on_kill, and wins. Without the owner the new try's training would be ended."""
    run = begun(hook, tmp_path)
    begun(hook, tmp_path, owner="try-2")
    with mock.patch("airflow_elastic.triggers.abandoned._LOOK_SECONDS", 0.05):
        assert not await _abandoned(hook, run, state, newest="try-2", wait=0.2)
    assert not run.state.ended
    assert Mailbox(run.store).read() == []


async def test_a_new_try_that_is_marked_before_its_trigger_starts_is_no_orphan(
    hook: FakeHook, tmp_path: Path
) -> None:
    """Its on_kill is never called. Without the old try's looking after it, its training would go on."""
    run = begun(hook, tmp_path)
    begun(hook, tmp_path, owner="try-2")
    with mock.patch("airflow_elastic.triggers.abandoned._LOOK_SECONDS", 0.05):
        assert await _abandoned(hook, run, "queued", "deferred", "failed", newest="try-2", wait=30.0)
    assert run.state.outcome == "stopped"


async def test_a_stop_that_a_new_try_overtakes_is_void(hook: FakeHook, tmp_path: Path) -> None:
    """The same race, a moment later: the old try has asked, and the controller reads it after the new one began."""
    run = begun(hook, tmp_path)
    run.ask_stop(by="Airflow", owner="try-1")
    begun(hook, tmp_path, owner="try-2")
    driving = asyncio.create_task(drive(hook, run.store.uri, log=Log(), poll_seconds=0.05))
    async with asyncio.timeout(10):
        while Mailbox(run.store).read():  # noqa: ASYNC110 - it is a folder
            await asyncio.sleep(0.02)
    assert not run.state.ended
    driving.cancel()
    await stop(hook, run.store.uri, by="test", owner=None, log=Log())


async def test_a_cleared_task_gets_time_to_take_it_over(hook: FakeHook, tmp_path: Path) -> None:
    run = begun(hook, tmp_path)
    with mock.patch("airflow_elastic.triggers.abandoned._LOOK_SECONDS", 0.05):
        waiting = asyncio.create_task(_abandoned(hook, run, None, "scheduled", "queued", wait=30.0))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        begun(hook, tmp_path, owner="try-2")
        assert not await waiting
        assert not run.state.ended
        assert await _abandoned(hook, run, None, "queued", owner="try-2", wait=0.2)
    assert "no new try came within 0.2 s" in str(run.state.reason)


async def test_an_airflow_that_does_not_answer_ends_nothing(hook: FakeHook, tmp_path: Path) -> None:
    run = begun(hook, tmp_path)
    with mock.patch("airflow_elastic.triggers.abandoned._LOOK_SECONDS", 0.05):
        assert not await _abandoned(hook, run, RuntimeError("no API server"), wait=0.2)
        assert not run.state.ended
        assert await _abandoned(hook, run, RuntimeError("not yet"), "failed", wait=30.0)


async def test_on_kill_goes_on_when_airflow_cancels_it(
    hook: FakeHook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow gives on_kill about a second. Without the shield, and the reference, the run would be left running."""
    run = begun(hook, tmp_path)
    asked = asyncio.Event()

    async def slow_state(ti: Any) -> str:
        asked.set()
        await asyncio.sleep(0.3)
        return "failed"

    monkeypatch.setattr(run_trigger.task, "task_state", slow_state)
    trigger = ElasticRunTrigger(str(tmp_path), "try-1")
    killing = asyncio.create_task(trigger.on_kill())
    await asked.wait()
    killing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await killing
    assert len(run_trigger._ending) == 1
    await asyncio.wait(run_trigger._ending)
    assert run.state.outcome == "stopped"


async def test_being_cancelled_otherwise_does_not_touch_the_run(hook: FakeHook, tmp_path: Path) -> None:
    """A triggerer that restarts cancels its triggers and calls cleanup: training is none of its business."""
    run = begun(hook, tmp_path)
    trigger = ElasticRunTrigger(str(tmp_path), "try-1", poll_seconds=0.05)
    running = asyncio.create_task(anext(trigger.run()))
    async with asyncio.timeout(10):
        while run.state.attempt.phase is not Phase.LIVE:  # noqa: ASYNC110 - it is a folder
            await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await trigger.cleanup()
    job = run.state.attempt.job or ""
    assert FakeEngine.jobs[job].live
    assert not run.state.ended
    await stop(hook, run.store.uri, by="test", owner=None, log=Log())


async def test_every_stop_names_the_try_that_it_is_for(hook: FakeHook, tmp_path: Path) -> None:
    """So that one which a new try overtakes is void."""
    run = begun(hook, tmp_path)
    with mock.patch("airflow_elastic.triggers.driving.drive"):
        await stop(hook, run.store.uri, by="Airflow", owner="try-1", log=Log())
    (request,) = Mailbox(run.store).read()
    assert (request.kind, request.owner) == ("stop", "try-1")
    begun(hook, tmp_path, owner="try-2")
    assert await stop(hook, run.store.uri, by="Airflow", owner="try-1", log=Log()) is None
    assert len(Mailbox(run.store).read()) == 1


# -- what a try works on -----------------------------------------------------------------------------------------


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
    assert ti.xcoms["run_connections"] == {"elastic_conn_id": "elastic_default", "aws_conn_id": "aws"}


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
    assert ("rank 1 on node-1, the first to fail:\nTraceback: X\n  Y" in log.text) is (kind is not None)


# -- deferrals that end badly ------------------------------------------------------------------------------------


def test_a_deferral_that_times_out_ends_the_run(hook: FakeHook, tmp_path: Path) -> None:
    """Airflow calls no on_kill then. Without the override the run would train on with nobody watching."""
    run = begun(hook, tmp_path)
    context = {"ti": FakeTask(max_tries=3, xcoms={"run_uri": str(tmp_path)})}
    with pytest.raises(AirflowFailException, match="saved and ended"):
        operator().resume_execution("__fail__", {"error": "Trigger timeout"}, context)
    assert (run.state.outcome, run.state.reason) == ("stopped", "stopped by Airflow: the deferral timed out")


@pytest.mark.parametrize(("number", "outcome"), [(1, None), (2, "stopped")])
def test_a_trigger_that_died_leaves_the_run_to_the_next_try_if_there_is_one(
    hook: FakeHook, tmp_path: Path, number: int, outcome: str | None
) -> None:
    run = begun(hook, tmp_path)
    context = {"ti": FakeTask(try_number=number, max_tries=1, xcoms={"run_uri": str(tmp_path)})}
    with pytest.raises(Exception, match="Trigger failure"):
        operator().resume_execution("__fail__", {"error": "Trigger failure"}, context)
    assert run.state.outcome == outcome


# -- in a worker -------------------------------------------------------------------------------------------------


def _foreground(hook: FakeHook, run: Run) -> Foreground:
    log = Log()
    observer = TaskObserver(log, run.store, lambda key, value: None)
    return Foreground(hook, run, "try-1", observer, log, poll_seconds=0.05)


@contextlib.contextmanager
def _signalled(run: Run, handler: Callable[[], object]) -> Iterator[None]:
    """Call this in a signal handler, on top of the main thread, once workers live."""

    def send() -> None:
        deadline = time.monotonic() + 10
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


# -- rank 0's lines ----------------------------------------------------------------------------------------------


def _at(run: Run, *stretches: int, attempt: int = 1) -> tuple[RunState, Progress]:
    found = tuple(Stretch(number, 1, 1, 0.0) for number in stretches)
    return run.state, Progress(attempt, 0.0, stretches=found)


async def test_lines_are_told_once_whole_and_from_every_generation(hook: FakeHook, tmp_path: Path) -> None:
    run = begun(hook, tmp_path)
    told: list[str] = []
    output = RankOutput(run.store, told.append)
    put = run.store.put
    put("logs/attempt-0001/g01-rank-0.log", b"one\ntw")
    await output.follow(*_at(run))
    assert told == ["one"]
    put("logs/attempt-0001/g01-rank-0.log", "one\ntwo\n 1%\r99%\r100%\nä".encode())
    put("logs/attempt-0001/g02-rank-0.log", b"second\n")
    put("logs/attempt-0001/g03-rank-0.log", b"third\n\xff\n")
    await output.follow(*_at(run, 1, 2, 3))
    assert told == ["one", "two", "100%", "ä", "second", "third", "\ufffd"]
    position = json.loads(json.dumps(output.position))
    put("logs/attempt-0001/g03-rank-0.log", b"third\n\xff\nrest")
    successor = RankOutput(run.store, told.append)
    successor.resume(position)
    await successor.follow(*_at(run, 1, 2, 3))
    await successor.finish()
    assert told[7:] == ["rest"]


async def test_a_flood_of_lines_is_cut_and_says_where_the_rest_is(hook: FakeHook, tmp_path: Path) -> None:
    """Without a limit, one script that prints in a loop would fill Airflow's log store."""
    run = begun(hook, tmp_path)
    told: list[str] = []
    run.store.put("logs/attempt-0001/g01-rank-0.log", b"x" * 100_000 + b"\n" + b"line\n" * 400_000)
    output = RankOutput(run.store, told.append)
    await output.follow(*_at(run))
    assert len(told) == LINES + 1
    assert len(told[0]) < 5000
    left = 400_001 - LINES
    assert told[-1] == f"({left} more lines are in {tmp_path}/logs/attempt-0001/g01-rank-0.log)"


async def test_of_an_attempt_that_was_there_before_only_the_newest_lines_are_told(
    hook: FakeHook, tmp_path: Path
) -> None:
    run = begun(hook, tmp_path)
    told: list[str] = []
    run.store.put("logs/attempt-0001/g01-rank-0.log", b"".join(b"line %06d\n" % n for n in range(20_000)))
    output = RankOutput(run.store, told.append, since=time.time())
    await output.follow(*_at(run))
    assert told[0].startswith("(earlier lines are in ")
    assert len(told) < LINES + 3


async def test_progress_is_a_courtesy_that_holds_up_nothing(hook: FakeHook, tmp_path: Path) -> None:
    """Without the background task, an SDK call that hangs would keep the controller from restarting workers."""
    run = begun(hook, tmp_path)
    hanging, log = threading.Event(), Log()

    def push(key: str, value: Any) -> None:
        hanging.wait(10)
        raise RuntimeError("no API server")

    observer = TaskObserver(log, run.store, push)
    began = time.monotonic()
    for _ in range(3):
        await observer.on_look(*_at(run))
    assert time.monotonic() - began < 1.0
    hanging.set()
    assert observer._pushing is not None
    await observer._pushing
    assert "the progress could not be stored as an XCom: no API server" in log.text


async def test_lines_are_told_even_where_airflow_is_slower_than_the_run(
    hook: FakeHook, tmp_path: Path
) -> None:
    """The first SDK call of a triggerer takes seconds: a short run has ended before it is known where to go on."""
    run, log, answer = begun(hook, tmp_path), Log(), threading.Event()
    run.store.put("logs/attempt-0001/g01-rank-0.log", b"the only line")
    observer = TaskObserver(
        log, run.store, lambda key, value: None, pushed=lambda key: answer.wait(10) and None
    )
    await observer.on_look(*_at(run))
    assert log.lines == []
    asyncio.get_running_loop().call_later(0.2, answer.set)
    await observer.finish()
    assert log.lines == ["[rank 0] the only line"]


async def test_the_past_is_not_told_again(hook: FakeHook, tmp_path: Path) -> None:
    log = Log()
    run = begun(hook, tmp_path, spec=build_spec({"command": "x", "engine": "fake"}, name="x"))
    await asyncio.sleep(0.01)
    observer = TaskObserver(log, run.store, lambda key, value: None)
    driving = asyncio.create_task(drive(hook, run.store.uri, log=log, poll_seconds=0.05, observer=observer))
    await stop(hook, run.store.uri, by="me", owner=None, log=log)
    assert (await driving).outcome == "stopped"
    assert "created" not in log.text
    assert "stop asked for by me" in log.text
    assert "run ended: stopped by me" in log.text


async def test_the_last_progress_tells_the_end(hook: FakeHook, tmp_path: Path) -> None:
    run, pushed = begun(hook, tmp_path), list[Any]()
    observer = TaskObserver(Log(), run.store, lambda key, value: pushed.append((key, value)))
    driving = asyncio.create_task(drive(hook, run.store.uri, log=Log(), poll_seconds=0.05, observer=observer))
    await stop(hook, run.store.uri, by="me", owner=None, log=Log())
    await driving
    await observer.finish()
    key, value = pushed[-1]
    assert (key, value["state"], value["step"]) == ("progress", "stopped", 0)


async def test_the_log_tells_what_workers_wait_for(hook: FakeHook, tmp_path: Path) -> None:
    log, engine = Log(), FakeEngine()
    options = {"command": "x", "engine": "fake", "engine_options": {"waiting": "queued"}}
    run = begun(hook, tmp_path, spec=build_spec(options, name="x"))
    observer = TaskObserver(log, run.store, lambda key, value: None)
    driving = asyncio.create_task(drive(hook, run.store.uri, log=log, poll_seconds=0.05, observer=observer))

    async def told(words: str) -> None:
        for _ in range(500):
            if words in log.lines:
                return
            await asyncio.sleep(0.01)
        pytest.fail(f"{words!r} was not told, but {log.lines}")

    await told("attempt 1: its worker is queued")
    engine.hold(run.state.attempt.job or "", Waiting.CAPACITY, "0/3 nodes are available: 3 Insufficient %s")
    await told("attempt 1: its worker waits for capacity: 0/3 nodes are available: 3 Insufficient %s")
    engine.release(run.state.attempt.job or "")
    await told("attempt 1: its worker runs")
    engine.finish(run.state.attempt.job or "")
    assert (await driving).outcome == "succeeded"
    assert len([line for line in log.lines if "its worker" in line]) == 3


async def test_the_progress_names_what_holds_up_the_start(hook: FakeHook, tmp_path: Path) -> None:
    """The first workers report while the others still wait: that is not yet a run that trains."""
    run, pushed = begun(hook, tmp_path), list[Any]()
    Journal(run.store).append(1, ev.AttemptSubmitted(1.0, 1, "job"))
    held = JobStatus((WorkerStatus("node-0", WorkerPhase.PENDING, waiting=Waiting.PULLING),))
    for progress, state in ((_at(run)[1], "pulling"), (_at(run, 1)[1], "running")):
        observer = TaskObserver(Log(), run.store, lambda key, value: pushed.append(value))
        observer.on_waiting(run.state, held)
        await observer.on_look(run.state, progress)
        assert observer._pushing is not None
        await observer._pushing
        assert pushed[-1]["state"] == state


# -- hook, link, sensor ------------------------------------------------------------------------------------------


def _connection(monkeypatch: pytest.MonkeyPatch, **found: Connection) -> None:
    def get(conn_id: str) -> Connection:
        if conn_id not in found:
            raise AirflowNotFoundException(f"The conn_id `{conn_id}` isn't defined")
        return found[conn_id]

    monkeypatch.setattr(BaseHook, "get_connection", staticmethod(get))


def test_the_default_connection_need_not_exist_any_other_must(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _connection(monkeypatch)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.delenv("AIRFLOW__ELASTIC__RUN_ROOT", raising=False)
    assert ElasticHook().run_root == str(tmp_path / "elastic-runs")
    assert ElasticHook().settings.engine == "local"
    with pytest.raises(AirflowNotFoundException, match="mine"):
        _ = ElasticHook("mine").run_root
    monkeypatch.setenv("AIRFLOW__ELASTIC__RUN_ROOT", "s3://bucket/runs/")
    assert ElasticHook().run_root == "s3://bucket/runs"


def test_only_known_keys_of_a_connection_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"run_root": "/mnt/runs", "engine": "", "s3_client_factory": "os.system", "environment": {"A": 1}}
    _connection(monkeypatch, mine=Connection(conn_id="mine", conn_type="elastic", extra=json.dumps(extra)))
    hook = ElasticHook("mine")
    assert (hook.run_root, hook.settings.engine, hook.aws_conn_id) == ("/mnt/runs", "local", None)
    _connection(
        monkeypatch, mine=Connection(conn_id="mine", conn_type="elastic", extra='{"engine": ["local"]}')
    )
    assert ElasticHook("mine").test_connection() == (
        False,
        "the connection 'mine' has engine ['local']; allowed: text",
    )


def test_an_aws_connection_serves_us_and_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = json.dumps({"region_name": "eu-west-1", "endpoint_url": "http://127.0.0.1:9"})
    aws = Connection(conn_id="a", conn_type="aws", login="AKIAEXAMPLE", password="sesame", extra=extra)
    _connection(monkeypatch, a=aws)
    hook = ElasticHook(aws_conn_id="a")
    store: Any = hook.open_store("s3://bucket/x")
    assert store.endpoint == "http://127.0.0.1:9"
    engine: Any = hook.engine("local", "s3://bucket/x")
    assert engine._environment == {
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "sesame",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
    }
    local: Any = hook.engine("local", "/tmp/x")
    assert local._environment == {}
    with pytest.raises(AirflowNotFoundException):
        _ = ElasticHook(aws_conn_id="nonesuch").open_store("s3://bucket/x").get("key")


def test_the_link_names_the_task_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")
    ti: Any = FakeTask(run_id="manual__2026-01-01T00:00:00+00:00", map_index=3)
    assert ElasticRunLink().get_link(operator(), ti_key=ti) == (
        "https://airflow.example/team/elastic/runs/a%20dag/manual__2026-01-01T00%3A00%3A00%2B00%3A00/train?map_index=3"
    )


def test_a_sensor_waits_for_exactly_one_thing() -> None:
    assert ElasticRunSensor(task_id="s", run_uri="/r").state == "succeeded"
    for bad in ({"step": 3, "state": "ended"}, {"step": 0}, {"state": "done"}, {"checkpoint": False}):
        with pytest.raises(SpecError):
            ElasticRunSensor(task_id="s", run_uri="/r", **bad)  # type: ignore[arg-type]


def test_what_a_run_has_reached(hook: FakeHook, tmp_path: Path) -> None:
    store = hook.open_store(str(tmp_path))
    assert reached(store, Target(step=1)) is None, "a run that is yet to come is waited for"
    run = begun(hook, tmp_path)
    journal = Journal(run.store)
    assert reached(store, Target("running")) is None
    journal.append(1, ev.AttemptSubmitted(1.0, 1, "job"))
    assert reached(store, Target("running"))
    assert reached(store, Target(checkpoint=True)) is None
    journal.append(2, ev.CheckpointCommitted(2.0, 1, 20, layout.manifest(20)))
    assert reached(store, Target(checkpoint=True)) == {
        "run_uri": str(tmp_path),
        "state": "running",
        "step": 20,
        "checkpoint": 20,
    }
    assert reached(store, Target(checkpoint=21)) is None
    assert reached(store, Target(step=20))
    assert reached(store, Target("ended")) is None
    ended(run, "failed", "no luck")
    assert reached(store, Target("failed"))
    assert reached(store, Target("ended"))
    for never in (Target("succeeded"), Target("stopped"), Target(step=21), Target(checkpoint=21)):
        with pytest.raises(OutOfReach, match=r"has failed at step 20 \(no luck\): it does not reach"):
            reached(store, never)


def test_a_sensor_in_a_worker_pokes_and_one_without_a_run_uri_says_so(hook: FakeHook, tmp_path: Path) -> None:
    run = begun(hook, tmp_path)
    poking = ElasticRunSensor(task_id="s", run_uri=str(tmp_path), deferrable=False)
    assert not poking.poke({})
    ended(run, "succeeded")
    assert poking.poke({}).xcom_value["state"] == "succeeded"
    poking.run_uri = "None"
    with pytest.raises(AirflowException, match="has pushed none"):
        poking.poke({})


# -- page, provider ----------------------------------------------------------------------------------------------


def test_the_page_escapes_whatever_a_script_says(hook: FakeHook, tmp_path: Path) -> None:
    from airflow_elastic.web.app import _pages

    evil = "<script>alert(1)</script>"
    run = begun(hook, tmp_path, spec=build_spec({"command": evil, "engine": "fake"}, name="x"))
    failed = Failure(FailureKind.CODE_ERROR, evil, traceback=evil, error=evil)
    state = ended(run, "failed", evil).state.with_attempt(cause=Cause.FAILURE, failure=failed, job=evil)
    progress = Progress(1, 0.0, metrics={evil: 1.0}, total_steps=3, step=1)
    status = document(f"/r/{evil}", state, progress, time.time())
    page = _pages.get_template("run.html").render(status=status, title=evil, run_id=evil, map_index=0)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 6
    assert "world size" in page.lower()


def test_the_page_shows_a_worker_that_was_lost_without_a_word(hook: FakeHook, tmp_path: Path) -> None:
    from airflow_elastic.web.app import _pages

    lost = Failure(FailureKind.WORKER_LOST, "node-1 was lost")
    state = begun(hook, tmp_path).state.with_attempt(cause=Cause.FAILURE, failure=lost)
    status = document("/r", state, None, time.time())
    page = _pages.get_template("run.html").render(status=status, title="t", run_id="r", map_index=-1)
    assert "failure: node-1 was lost" in page
    assert "traceback" not in page


def test_the_page_of_a_failure_that_left_no_traceback(hook: FakeHook, tmp_path: Path) -> None:
    """A lost worker leaves none, and the status document leaves out what is None."""
    from airflow_elastic.web.app import _pages

    state = begun(hook, tmp_path).state
    lost = state.with_attempt(
        cause=Cause.FAILURE, failure=Failure(FailureKind.WORKER_LOST, "node-1 was lost")
    )
    status = document("/r", lost, None, time.time())
    page = _pages.get_template("run.html").render(status=status, title="t", run_id="r", map_index=-1)
    assert "failure: node-1 was lost" in page
    assert "<details>" not in page


def test_the_page_says_what_workers_wait_for(hook: FakeHook, tmp_path: Path) -> None:
    from airflow_elastic.web.app import _pages

    run = begun(hook, tmp_path)
    Journal(run.store).append(1, ev.AttemptSubmitted(1.0, 1, "job"))
    wait = Wait(Waiting.CAPACITY, 2, 4, "3 Insufficient <gpu>")
    status = document("/r", run.state, None, time.time(), wait)
    page = _pages.get_template("run.html").render(status=status, title="t", run_id="r", map_index=-1)
    assert "2 of 4 workers wait for capacity: 3 Insufficient &lt;gpu&gt;" in page
    assert ">waiting for capacity</span>" in page


def test_what_the_provider_names_is_there() -> None:
    info = get_provider_info()
    (connection,) = info["connection-types"]
    paths = [connection["hook-class-name"], *info["extra-links"], *info.get("cli", [])]
    paths += [decorator["class-name"] for decorator in info["task-decorators"]]
    for path in paths:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path
    for kind in ("operators", "sensors", "hooks", "triggers"):
        for group in info[kind]:
            for module in group["python-modules"]:
                importlib.import_module(module)
    assert set(connection["conn-fields"]) == {"run_root", "engine", "aws_conn_id", "kubernetes_conn_id"}
