"""Triggers for an AssetWatcher: one event each, also over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records import checkpoints, promotions
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control.models import Request, promote, rollback
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.triggers import ElasticCheckpointEventTrigger, ElasticPromotionEventTrigger
from airflow_elastic.triggers.assets import watcher
from tests.support.models import a_run, exported, saved
from tests.support.runs.triggerer import State, Triggerer


class Away(State):
    """Airflow's API server is away for a moment."""

    calls = 0

    async def aget(self, key: str) -> Any:
        self.calls += 1
        if self.calls < 3:
            raise RuntimeError("the API server does not answer")
        return self.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self.calls += 1
        if self.calls == 4:
            raise RuntimeError("the API server does not answer")
        self[key] = value


class Several(State):
    """What triggers get where several assets have equal triggers."""

    async def aget(self, key: str) -> Any:
        raise ValueError("Task has 2 concrete inlets and outlets")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "SETTLE_SECONDS", 0.0)


@pytest.fixture
def run(tmp_path: Path) -> Store:
    return a_run(tmp_path / "run", {10: {"loss": 0.5}})


async def test_each_new_checkpoint_once_over_restarts(run: Store) -> None:
    state, trigger = State(), ElasticCheckpointEventTrigger(run.uri, poll_seconds=0.01)
    first = Triggerer(trigger, state)
    await first.until(0, state, 10)
    saved(run, 20, loss=0.4)
    await first.until(1, state, 20)
    await first.kill()
    saved(run, 30, loss=0.3)
    saved(run, 40, loss=0.2)
    second = Triggerer(trigger, state)
    await second.until(2, state, 40)
    assert [event["step"] for event in first.events + second.events] == [20, 30, 40]
    assert second.events[0]["metrics"] == {"loss": 0.3}
    assert second.events[0]["manifest"] == f"{run.uri}/{layout.manifest(30)}"
    run.delete([layout.manifest(30), layout.manifest(40)])  # it goes on from 20
    await second.until(2, state, 20)
    saved(run, 30, loss=0.35)
    await second.until(3, state, 30)
    assert second.events[-1]["metrics"] == {"loss": 0.35}
    await second.kill()


async def test_an_api_server_that_is_away_loses_no_event(run: Store) -> None:
    first_state, trigger = State(), ElasticCheckpointEventTrigger(run.uri, poll_seconds=0.01)
    first = Triggerer(trigger, first_state)
    await first.until(0, first_state, 10)
    await first.kill()
    saved(run, 20)
    state = Away(first_state)
    second = Triggerer(trigger, state)
    await second.until(1, state, 20)
    assert [event["step"] for event in second.events] == [20]
    await second.kill()


async def test_what_is_there_already_if_that_is_wanted(run: Store) -> None:
    watching = Triggerer(ElasticCheckpointEventTrigger(run.uri, existing=True, poll_seconds=0.01), None)
    await watching.until(1)
    assert watching.events[0]["step"] == 10
    await watching.kill()


async def test_promotions_and_rollbacks(run: Store, tmp_path: Path) -> None:
    model, state = open_store(str(tmp_path / "models")), State()
    watching = Triggerer(ElasticPromotionEventTrigger(model.uri, poll_seconds=0.01), state)
    await watching.until(0, state, -1)
    saved(run, 20)
    for step in (10, 20):
        promote(model, run, Request("anna", step=step), exported)
    rollback(model, by="bob", why="errors")
    await watching.until(3, state, 3)
    assert [(event["number"], event["kind"], event["step"]) for event in watching.events] == [
        (1, "promote", 10),
        (2, "promote", 20),
        (3, "rollback", 10),
    ]
    assert watching.events[0]["key"] == f"{model.uri}#1"
    assert promotions.current(model) is not None
    await watching.kill()


async def test_storage_out_of_reach_is_waited_for(
    run: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps, answers = checkpoints.steps, iter([StoreError("out of reach"), None])

    def now_and_then(store: Store) -> list[int]:
        if (error := next(answers, None)) is not None:
            raise error
        return steps(store)

    monkeypatch.setattr(checkpoints, "steps", now_and_then)
    watching = Triggerer(ElasticCheckpointEventTrigger(run.uri, existing=True, poll_seconds=0.01), None)
    await watching.until(1)
    assert "cannot be read: out of reach" in capsys.readouterr().out
    await watching.kill()


async def test_equal_triggers_of_several_assets_are_told_apart(
    run: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    watching = Triggerer(ElasticCheckpointEventTrigger(run.uri, existing=True, poll_seconds=0.01), Several())
    await watching.until(1)
    assert "give each trigger another poll_seconds" in capsys.readouterr().out
    await watching.kill()
