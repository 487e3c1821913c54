"""What the task's log and the page are told of a run."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.control.runs import Run
from airflow_elastic.core.state import RunState
from airflow_elastic.operators.task.parameters import build_spec
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.status import (
    JobStatus,
    Progress,
    Stretch,
    Waiting,
    WorkerPhase,
    WorkerStatus,
)
from airflow_elastic.testing.fake_engine import FakeEngine
from airflow_elastic.triggers.driving import drive, stop
from airflow_elastic.triggers.observer import TaskObserver
from airflow_elastic.triggers.output import LINES, RankOutput
from airflow_elastic.triggers.task import READ_BYTES, DeliveredLog
from tests.support.machine.patience import PATIENCE_SECONDS, until_async
from tests.support.runs.surface import FakeHook, Log, begun


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
    assert told[LINES // 2] == f"({left} more lines are in {tmp_path}/logs/attempt-0001/g01-rank-0.log)"


async def test_a_trigger_ends_when_airflow_has_read_its_last_lines() -> None:
    """The triggerer reads a part of the log with each request, and drops what is left when the trigger ends."""
    waiting = bytearray()

    def read() -> None:
        del waiting[:READ_BYTES]

    class Socket(Log):
        def info(self, event: str, *args: object) -> None:
            super().info(event, *args)
            waiting.extend(json.dumps({"event": event % args, "task_id": "train", "at": "x" * 250}).encode())

    delivered = DeliveredLog(log := Socket())
    for number in range(LINES):
        delivered.info("%s", f"[rank 0] line {number} {'x' * 200}")
    assert len(waiting) > 20 * READ_BYTES
    await delivered.delivered(read)
    assert (len(log.lines), len(waiting)) == (LINES, 0)


async def test_old_lines_cost_no_requests_and_an_airflow_that_does_not_answer_ends_the_wait() -> None:
    clock, asked = [0.0], list[int]()

    def fails() -> None:
        asked.append(1)
        raise RuntimeError("no API server")

    log = DeliveredLog(Log(), now=lambda: clock[0])
    for _ in range(LINES):
        log.warning("%s", "a line")
    await log.delivered(fails)
    assert asked == [1]
    clock[0] += 3600
    await log.delivered(fails)
    assert asked == [1]


async def test_of_an_attempt_that_was_there_before_only_the_newest_lines_are_told(
    hook: FakeHook, tmp_path: Path
) -> None:
    run = begun(hook, tmp_path)
    told: list[str] = []
    run.store.put("logs/attempt-0001/g01-rank-0.log", b"".join(b"line %06d\n" % n for n in range(20_000)))
    output = RankOutput(run.store, told.append, since=time.time())
    await output.follow(*_at(run))
    assert "left out here: the whole log is in " in told[0]
    assert len(told) < LINES + 3
    assert told[-1] == "line 019999"


async def test_progress_is_a_courtesy_that_holds_up_nothing(hook: FakeHook, tmp_path: Path) -> None:
    """Without the background task, an SDK call that hangs would keep the controller from restarting workers."""
    run = begun(hook, tmp_path)
    hanging, log = threading.Event(), Log()

    def push(key: str, value: Any) -> None:
        hanging.wait(PATIENCE_SECONDS)
        raise RuntimeError("no API server")

    observer = TaskObserver(log, run.store, push)
    for _ in range(3):
        await observer.on_look(*_at(run))
    assert observer._pushing is not None
    assert not observer._pushing.done()
    hanging.set()
    await observer._pushing
    assert "the progress could not be stored as an XCom: no API server" in log.text


async def test_lines_are_told_even_where_airflow_is_slower_than_the_run(
    hook: FakeHook, tmp_path: Path
) -> None:
    """The first SDK call of a triggerer takes seconds: a short run has ended before it is known where to go on."""
    run, log, answer = begun(hook, tmp_path), Log(), threading.Event()
    run.store.put("logs/attempt-0001/g01-rank-0.log", b"the only line")
    observer = TaskObserver(
        log, run.store, lambda key, value: None, pushed=lambda key: answer.wait(PATIENCE_SECONDS) and None
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


async def test_lost_workers_are_warnings_and_the_end_of_a_run_that_failed_is_an_error(
    hook: FakeHook, tmp_path: Path
) -> None:
    log, engine = Log(), FakeEngine()
    options = {"command": "x", "engine": "fake", "backoff_limit": 1}
    run = begun(hook, tmp_path, spec=build_spec(options, name="x"))
    observer = TaskObserver(log, run.store, lambda key, value: None)
    driving = asyncio.create_task(drive(hook, run.store.uri, log=log, poll_seconds=0.05, observer=observer))
    for attempt in (1, 2):

        def submitted(number: int = attempt) -> bool:
            return bool(run.state.attempt.number == number and run.state.attempt.job in engine.jobs)

        await until_async(submitted, f"attempt {attempt}")
        engine.end_worker(run.state.attempt.job or "", 0, WorkerStatus("node-0", WorkerPhase.LOST))
    assert (await driving).outcome == "failed"
    assert [level for level, _ in log.grave] == ["WARNING", "WARNING", "WARNING", "WARNING", "ERROR"]
    lost, gone, *_, failed = [line for _, line in log.grave]
    assert lost.startswith("node-0 was lost")
    assert gone == "attempt 1 is gone: attempt 2 follows (restart 1 of 1)"
    assert failed.startswith("run ended: failed (node-0 was lost")
    mild = set(log.lines) - {line for _, line in log.grave}
    assert any(line.startswith("attempt 2 submitted") for line in mild)


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
