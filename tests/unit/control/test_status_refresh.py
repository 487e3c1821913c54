"""A controller that is at work is seen to be, however long one thing takes it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import controller
from airflow_elastic.control.controller import Controller
from airflow_elastic.control.runs import start_run
from airflow_elastic.control.status_refresh import refreshing_status
from airflow_elastic.spec import layout
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.builders import spec
from tests.support.driving import Listener, controlled
from tests.support.machine.patience import until_async

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Slow(FakeEngine):
    """Its workers take as long to end as they are let."""

    def __init__(self) -> None:
        super().__init__()
        self.ending, self.may_end = asyncio.Event(), asyncio.Event()

    async def delete(self, job, grace_seconds) -> None:  # type: ignore[no-untyped-def]
        self.ending.set()
        await self.may_end.wait()
        await super().delete(job, grace_seconds)


async def test_while_workers_take_long_to_end_the_status_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "STATUS_SECONDS", 0.05)
    engine = Slow()
    async with controlled(tmp_path / "run", engine, Listener()) as run:
        await until_async(lambda: run.state.attempt.job, "the workers")
        run.ask_stop(by="ada")
        await engine.ending.wait()

        def written_at() -> float:
            return float(json.loads(run.store.get(layout.STATUS) or b"{}")["at"])

        first = written_at()
        await until_async(lambda: written_at() > first, "a sign of life")
        second = written_at()
        await until_async(lambda: written_at() > second, "another one")
        engine.may_end.set()
        await until_async(lambda: run.state.ended, "the end")


async def test_one_that_polls_seldom_is_seen_as_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "STATUS_SECONDS", 0.05)
    engine = FakeEngine()
    run = start_run(open_store(str(tmp_path / "run")), spec(), engine=engine)
    driving = asyncio.create_task(Controller(run.store, engine, poll_seconds=600.0).drive())
    try:
        await until_async(lambda: run.store.get(layout.STATUS), "the status")
        first = run.store.get(layout.STATUS)
        await until_async(lambda: run.state.attempt.job, "the workers")
        await until_async(lambda: run.store.get(layout.STATUS) != first, "a sign of life")
        second = json.loads(run.store.get(layout.STATUS) or b"")["at"]
        await until_async(
            lambda: json.loads(run.store.get(layout.STATUS) or b"")["at"] > second, "another one"
        )
    finally:
        driving.cancel()
        await asyncio.wait({driving})
    assert driving.cancelled()


async def test_a_cancellation_is_never_lost() -> None:
    """Airflow cancels a trigger at any moment: one that went on would train with two controllers."""

    async def work() -> None:
        async with refreshing_status(asyncio.Event().wait, time.monotonic, 3600.0):  # type: ignore[arg-type]
            await asyncio.sleep(0)

    lost = 0
    for moments in range(12):
        task = asyncio.create_task(work())
        for _ in range(moments):
            await asyncio.sleep(0)
        asked = task.cancel()
        await asyncio.wait({task})
        lost += asked and not task.cancelled()
    assert lost == 0
