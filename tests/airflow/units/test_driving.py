"""Triggers: what they keep, what they tell, and who ends a run whose trigger was cancelled."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    TaskDeferred,
)

from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.control.runs import Run
from airflow_elastic.core.state import Phase
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.testing.fake_engine import FakeEngine
from airflow_elastic.triggers import ElasticRunConditionTrigger, ElasticRunTrigger, driving
from airflow_elastic.triggers import condition as condition_trigger
from airflow_elastic.triggers import run as run_trigger
from airflow_elastic.triggers.abandoned import end_if_abandoned
from airflow_elastic.triggers.driving import drive, stop
from airflow_elastic.triggers.json_kwargs import require_json
from airflow_elastic.triggers.task import GONE
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.runs.surface import OWN_TASK, FakeHook, FakeTask, Log, begun, ended, operator

# -- triggers ----------------------------------------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    "poison",
    [object(), {1, 2}, (1,), Path("/x"), b"x", {1: 2}, Colour.RED, float("nan"), [{"a": [object()]}]],
)
def test_what_is_no_plain_json_is_named_and_refused(poison: object) -> None:
    with pytest.raises(InvalidInput, match=r"run_uri.*allowed: only types that JSON has"):
        require_json({"run_uri": poison})


def test_the_operator_refuses_to_defer_with_poison(hook: FakeHook) -> None:
    made = operator(engine="fake", poll_interval=timedelta(seconds=1))
    assert made.poll_interval == 1.0
    made.poll_interval = timedelta(seconds=1)
    with pytest.raises(AirflowFailException, match=r"poll_seconds: datetime\.timedelta.* is a timedelta"):
        made.execute({"ti": FakeTask()})


def test_triggers_survive_the_database_and_hold_no_secret() -> None:
    for trigger in (
        ElasticRunTrigger("/r", "try-1", "conn", "aws", 1.0),
        ElasticRunConditionTrigger("/r", {"kind": "reached", "step": 3}, aws_conn_id="aws"),
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
        "callbacks",
        "connection_required",
    }


async def test_a_triggerer_does_not_go_on_without_the_connection_that_the_task_has_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would drive the run with the credentials, or on the cluster, of nobody's choice."""
    extra = json.dumps({"aws_conn_id": "storage"})
    defined = [Connection(conn_id="elastic_default", conn_type="elastic", extra=extra)]

    def get(conn_id: str) -> Connection:
        if not defined:
            raise AirflowNotFoundException(f"The conn_id `{conn_id}` isn't defined")
        return defined[0]

    monkeypatch.setattr(BaseHook, "get_connection", staticmethod(get))
    task = operator(run_uri="s3://bucket/run")
    with pytest.raises(TaskDeferred) as deferred:
        task._defer("s3://bucket/run", "try-1")
    _path, kwargs = deferred.value.trigger.serialize()
    assert kwargs["connection_required"]
    defined.clear()
    monkeypatch.setattr(run_trigger, "EARLIEST_EVENT_SECONDS", 0.0)
    (event,) = [event async for event in ElasticRunTrigger(**kwargs).run()]
    assert (
        "Define it where the triggerer finds it, e.g. as AIRFLOW_CONN_ELASTIC_DEFAULT"
        in event.payload["error"]
    )
    condition = ElasticRunConditionTrigger(
        "s3://bucket/run", {"kind": "reached", "step": 3}, connection_required=True
    )
    monkeypatch.setattr(condition_trigger, "EARLIEST_EVENT_SECONDS", 0.0)
    (event,) = [event async for event in condition.run()]
    assert "Define it where the triggerer finds it" in event.payload["error"]
    with pytest.raises(TaskDeferred) as deferred:
        task._defer("s3://bucket/run", "try-1")
    assert not deferred.value.trigger.connection_required


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


# -- who ends a run whose trigger was cancelled ------------------------------------------------------------------------


_NO_MORE = object()


async def _abandoned(
    hook: FakeHook,
    run: Run,
    *states: Any,
    owner: str = "try-1",
    wait: float = 0.0,
    asked_last: asyncio.Event | None = None,
) -> bool:
    """`asked_last` is set when Airflow is asked again after it has given the last one of `states`."""
    told = iter(states)
    last: Any = states[-1]

    async def task_state() -> Any:
        nonlocal last
        if (state := next(told, _NO_MORE)) is not _NO_MORE:
            last = state
        elif asked_last is not None:
            asked_last.set()
        if isinstance(last, Exception):
            raise last
        return last

    return await end_if_abandoned(
        hook,
        run.store.uri,
        owner,
        task=OWN_TASK,
        task_state=task_state,
        log=Log(),
        takeover_seconds=wait,
        poll_seconds=0.05,
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


@pytest.mark.parametrize("other", ["dag/run/another/-1", None])
@pytest.mark.parametrize("state", ["failed", "success", None, GONE, "running"])
async def test_the_run_of_somebody_else_is_left_alone(
    hook: FakeHook, tmp_path: Path, state: str | None, other: str | None
) -> None:
    """Two tasks with one run_uri, or a shell."""
    run = begun(hook, tmp_path)
    begun(hook, tmp_path, owner="try-2", task=other)
    async with asyncio.timeout(PATIENCE_SECONDS):
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
    assert not await _abandoned(hook, run, state, wait=0.2)
    assert not run.state.ended
    assert Mailbox(run.store).read() == []


async def test_a_new_try_that_is_marked_before_its_trigger_starts_is_no_orphan(
    hook: FakeHook, tmp_path: Path
) -> None:
    """Its on_kill is never called. Without the old try's looking after it, its training would go on."""
    run = begun(hook, tmp_path)
    begun(hook, tmp_path, owner="try-2")
    assert await _abandoned(hook, run, "queued", "deferred", "failed", wait=30.0)
    assert run.state.outcome == "stopped"


async def test_a_stop_that_a_new_try_overtakes_is_void(hook: FakeHook, tmp_path: Path) -> None:
    """The same race, a moment later: the old try has asked, and the controller reads it after the new one began."""
    run = begun(hook, tmp_path)
    run.ask_stop(by="Airflow", owner="try-1")
    begun(hook, tmp_path, owner="try-2")
    driving = asyncio.create_task(drive(hook, run.store.uri, log=Log(), poll_seconds=0.05))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while Mailbox(run.store).read():  # noqa: ASYNC110 - it is a folder
            await asyncio.sleep(0.02)
    assert not run.state.ended
    driving.cancel()
    await stop(hook, run.store.uri, by="test", owner=None, log=Log())


async def test_a_cleared_task_gets_time_to_take_it_over(hook: FakeHook, tmp_path: Path) -> None:
    run = begun(hook, tmp_path)
    asked = asyncio.Event()
    states = (None, "scheduled", "queued")
    waiting = asyncio.create_task(_abandoned(hook, run, *states, wait=30.0, asked_last=asked))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asked.wait()
    assert not waiting.done()
    begun(hook, tmp_path, owner="try-2", task=None)
    assert not await waiting
    assert not run.state.ended
    assert await _abandoned(hook, run, None, "queued", owner="try-2", wait=0.2)
    assert "no new try came within 0.2 s" in str(run.state.reason)


async def test_an_airflow_that_does_not_answer_ends_nothing(hook: FakeHook, tmp_path: Path) -> None:
    run = begun(hook, tmp_path)
    assert not await _abandoned(hook, run, RuntimeError("no API server"), wait=0.2)
    assert not run.state.ended
    assert await _abandoned(hook, run, RuntimeError("not yet"), "failed", wait=30.0)


async def test_the_end_of_an_abandoned_run_may_take_longer_than_a_stop(
    hook: FakeHook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, or without the cluster. Nobody else drives the run: it would train on."""
    run = begun(hook, tmp_path)
    monkeypatch.setattr(driving, "STOP_SECONDS", -run.state.spec.health.grace_seconds)
    with pytest.raises(TimeoutError):
        await stop(hook, run.store.uri, by="test", owner=None, log=Log())
    assert not run.state.ended
    assert await _abandoned(hook, run, "failed")
    assert run.state.outcome == "stopped"


async def test_on_kill_goes_on_when_airflow_cancels_it(
    hook: FakeHook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow gives on_kill about a second. Without the shield, and the reference, the run would be left running."""
    run = begun(hook, tmp_path)
    asked, cancelled = asyncio.Event(), asyncio.Event()

    async def slow_state(ti: Any) -> str:
        asked.set()
        await cancelled.wait()
        return "failed"

    monkeypatch.setattr(run_trigger.task, "task_state", slow_state)
    trigger = ElasticRunTrigger(str(tmp_path), "try-1")
    killing = asyncio.create_task(trigger.on_kill())
    await asked.wait()
    killing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await killing
    assert len(run_trigger._ending) == 1
    cancelled.set()
    await asyncio.wait(run_trigger._ending)
    assert run.state.outcome == "stopped"


async def test_being_cancelled_otherwise_does_not_touch_the_run(hook: FakeHook, tmp_path: Path) -> None:
    """A triggerer that restarts cancels its triggers and calls cleanup: training is none of its business."""
    run = begun(hook, tmp_path)
    trigger = ElasticRunTrigger(str(tmp_path), "try-1", poll_seconds=0.05)
    running = asyncio.create_task(anext(trigger.run()))
    async with asyncio.timeout(PATIENCE_SECONDS):
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
