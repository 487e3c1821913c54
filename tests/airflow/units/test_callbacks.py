"""When callbacks are called, and which are refused: an observer over a real journal."""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseNotifier
from airflow.sdk.definitions.callback import AsyncCallback, SyncCallback

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.control.runs import Run
from airflow_elastic.core.machine import create, evolve
from airflow_elastic.core.overview.notices import LASTING_SECONDS, Watch
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import SpecError, StoreError
from airflow_elastic.triggers.callbacks import CallbackObserver, plain_callbacks
from airflow_elastic.triggers.callbacks import observer as module
from tests.support.runs.surface import FakeHook, begun, operator

HERE = __name__
told: list[tuple[str, dict[str, Any]]] = []
failures: list[Exception] = []


def page(context: dict[str, Any], who: str = "me") -> None:
    if failures:
        raise failures.pop()
    told.append((who, context["event"]))


async def mail(**kwargs: Any) -> None:
    told.append(("mail", kwargs["context"]["event"]))


def bare() -> None:
    told.append(("bare", {}))


class Letter(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Any) -> None:
        told.append((self.text, context["event"]))


class AsyncLetter(Letter):
    async def async_notify(self, context: Any) -> None:
        told.append((f"async {self.text}", context["event"]))


@pytest.fixture(autouse=True)
def _nothing_told() -> Iterator[None]:
    told.clear()
    failures.clear()
    yield
    told.clear()


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, event: str, *args: object) -> None:
        self.lines.append(event % args)

    warning = error = info


def feed(observer: CallbackObserver, run: Run) -> None:
    """What a controller does that takes the run over."""
    state = None
    for event in Journal(run.store).read():
        before, state = state, create(event) if state is None else evolve(state, event)
        observer.on_event(event, before, state)


def watching(run: Run, log: Log | None = None, **callbacks: Any) -> CallbackObserver:
    plain = {name: plain_callbacks(name, value) for name, value in callbacks.items()}
    return CallbackObserver(run.store, plain, {"task_id": "train"}, log or Log())


@pytest.fixture
def run(hook: FakeHook, tmp_path: Path) -> Run:
    made = begun(hook, tmp_path)
    journal = Journal(made.store)
    journal.append(1, ev.AttemptSubmitted(1.0, 1, "job"))
    for number, step in enumerate((20, 40), 2):
        journal.append(number, ev.CheckpointCommitted(float(step), 1, step, layout.manifest(step)))
    return made


async def test_each_event_is_told_once_also_by_observers_that_come_later(run: Run) -> None:
    first = watching(run, on_checkpoint=page)
    feed(first, run)
    await first.finish()
    assert [(who, event["step"], event["kind"]) for who, event in told] == [
        ("me", 20, "checkpoint"),
        ("me", 40, "checkpoint"),
    ]
    feed(first, run)  # after trouble with the storage a new controller repeats all
    Journal(run.store).append(4, ev.CheckpointCommitted(60.0, 1, 60, layout.manifest(60)))
    second = watching(run, on_checkpoint=page)
    feed(second, run)
    await asyncio.gather(first.finish(), second.finish())
    assert [event["step"] for _, event in told] == [20, 40, 60]
    third = watching(run, on_checkpoint=page)
    feed(third, run)
    await third.finish()
    assert len(told) == 3


async def test_who_dies_between_two_callbacks_leaves_the_second_to_the_next(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [page, f"{HERE}.mail"]
    dying = watching(run, on_checkpoint=both)
    writes = 0

    def write(self: CallbackObserver, state: Any, real: Any = CallbackObserver._write) -> None:
        nonlocal writes
        writes += 1
        if writes > 1:
            raise StoreError("the disk is gone")
        real(self, state)

    monkeypatch.setattr(CallbackObserver, "_write", write)
    feed(dying, run)
    await dying.finish()
    assert [who for who, _ in told] == ["me", "mail"], "the second call is not recorded"
    monkeypatch.undo()
    after = watching(run, on_checkpoint=both)
    feed(after, run)
    await after.finish()
    assert [(who, event["step"]) for who, event in told[2:]] == [("mail", 20), ("me", 40), ("mail", 40)]


async def test_functions_coroutines_and_notifiers_get_what_they_ask_for(run: Run) -> None:
    all_ = [
        SyncCallback(f"{HERE}.page", kwargs={"who": "you"}),
        mail,
        bare,
        AsyncCallback(f"{HERE}.Letter", kwargs={"text": "step {{ event.step }} of {{ task_id }}"}),
        AsyncCallback(f"{HERE}.AsyncLetter", kwargs={"text": "{{ event.kind }}"}),
    ]
    observer = watching(run, on_checkpoint=all_)
    feed(observer, run)
    await observer.finish()
    assert [who for who, _ in told[:5]] == ["you", "mail", "bare", "step 20 of train", "async checkpoint"]
    assert len(told) == 10


async def test_a_callback_that_fails_is_tried_again_and_others_are_not_kept_waiting(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
    failures.extend(ValueError("no such channel") for _ in range(4))
    log = Log()
    observer = watching(run, log, on_checkpoint=page)
    feed(observer, run)
    await observer.finish()
    assert [event["step"] for _, event in told] == [40], "of the first three tries have failed"
    assert sum("has failed: ValueError: no such channel" in line for line in log.lines) == 4
    assert sum("it is given up" in line for line in log.lines) == 1


async def test_what_cannot_be_imported_is_given_up_at_once_with_advice(run: Run) -> None:
    log = Log()
    observer = watching(run, log, on_checkpoint=["nowhere.page", page])
    feed(observer, run)
    await observer.finish()
    assert [event["step"] for _, event in told] == [20, 40]
    assert sum("put it into Airflow's plugins); it is given up" in line for line in log.lines) == 2


async def test_a_restart_says_why_and_a_scale_step_is_none(hook: FakeHook, tmp_path: Path) -> None:
    run = begun(hook, tmp_path)
    journal = Journal(run.store)
    observer = watching(run, on_restart=page, on_scale=mail)
    feed(observer, run)
    for event in (
        ev.AttemptSubmitted(1.0, 1, "job"),
        ev.Stalled(2.0, 1, 600.0, 30),
        ev.AttemptGone(3.0, 1),
        ev.AttemptSubmitted(4.0, 2, "job"),
    ):
        assert journal.append(len(journal.read()), event)
    feed(observer, run)
    await observer.finish()
    ((who, event),) = told
    assert (who, event["kind"], event["attempt"]) == ("me", "restart", 2)
    assert "600 s" in event["text"]
    assert "attempt 2 submitted" in event["text"]


def test_a_watch_reports_once_for_each_time_that_a_run_is_unwell() -> None:
    bad: dict[str, Any] = {"state": "running", "loss": float("nan")}
    watch = Watch()
    assert watch.look(bad, 100.0) is None
    assert watch.look(bad, 100.0 + LASTING_SECONDS) == "the loss is not a number"
    assert watch.look(bad, 200.0) is None
    taken_over = Watch(watch.reported)
    assert taken_over.look(bad, 300.0) is None, "an earlier watch has reported it"
    assert taken_over.look({"state": "running"}, 310.0) is None
    assert taken_over.reported is None
    assert taken_over.look(bad, 400.0) is None
    assert taken_over.look(bad, 400.0 + LASTING_SECONDS)


async def test_who_takes_over_knows_that_bad_health_was_reported(run: Run) -> None:
    run.store.put(layout.NOTICES, json.dumps({"next": 4, "calls": 0, "unhealthy": 7.0}).encode())
    observer = watching(run, on_unhealthy=page)
    feed(observer, run)
    await observer.finish()
    assert observer._watch.reported == 7.0
    observer.on_published(run.state, None)  # it is well by now
    await observer.finish()
    assert json.loads(run.store.get(layout.NOTICES) or b"")["unhealthy"] is None
    assert told == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda context: None, "no lambda"),
        (Letter("hello"), "allowed: a function or a notifier class"),
        (functools.partial(page, who="x"), "allowed: a function"),
        ("page", "allowed: a function"),
        ([page, 3], "given 3"),
        ("unusual_prefix_0123_my_dag.page", "not one of the DAG file"),
        (AsyncCallback("a.b", kwargs={"when": {1, 2}}), "kwargs of plain JSON"),
    ],
)
def test_what_the_triggerer_could_not_call_is_refused_while_the_dag_is_parsed(given: Any, said: str) -> None:
    with pytest.raises(SpecError, match=f"train.on_restart: .*{said}"):
        operator(on_restart=given)


def test_callbacks_are_plain_json_for_the_trigger() -> None:
    task = operator(on_restart=os.path.join, on_checkpoint=["a.b", AsyncCallback("c.d", kwargs={"x": 1})])
    assert task.callbacks == {
        "on_restart": [{"path": "posixpath.join", "kwargs": {}}],
        "on_checkpoint": [{"path": "a.b", "kwargs": {}}, {"path": "c.d", "kwargs": {"x": 1}}],
    }
