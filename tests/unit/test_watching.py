"""A controller whose sight of the workers fails for a while, or shows workers that have not started yet."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from airflow_elastic.adapters.stores import open_store
from airflow_elastic.control.controller import Controller
from airflow_elastic.control.observer import Observer
from airflow_elastic.control.runs import Run, start_run
from airflow_elastic.spec.errors import EngineError
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.builders import spec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from airflow_elastic.core.state import RunState
    from airflow_elastic.engines.api import Job
    from airflow_elastic.spec.errors import ElasticError
    from airflow_elastic.spec.status import JobStatus


class Blind(FakeEngine):
    """Its watch fails a few times before it works, each time after a first look or without one."""

    def __init__(self, failures: int, *, after_a_look: bool = False) -> None:
        self.failures, self.after_a_look = failures, after_a_look

    async def watch(self, job: Job) -> AsyncIterator[JobStatus]:
        async for status in super().watch(job):
            if self.failures > 0 and not self.after_a_look:
                self.failures -= 1
                raise EngineError("the API server does not answer")
            yield status
            if self.failures > 0:
                self.failures -= 1
                raise EngineError("the API server has gone away")


class Listener(Observer):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.troubles: list[tuple[str, int, float]] = []
        self.looks = 0

    def on_trouble(self, error: ElasticError, times: int, pause: float) -> None:
        self.troubles.append((str(error), times, pause))

    async def on_look(self, state: RunState, progress: Any) -> None:
        self.looks += 1


@contextlib.asynccontextmanager
async def controlled(folder: Path, engine: FakeEngine, observer: Observer) -> AsyncIterator[Run]:
    """A run with a controller at work."""
    run = start_run(open_store(str(folder)), spec(), engine=engine)
    driving = asyncio.create_task(Controller(run.store, engine, observer=observer, poll_seconds=0.02).drive())
    try:
        yield run
        assert not driving.done() or driving.result()
    finally:
        driving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await driving


async def until(holds: Callable[[], Any], what: str) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{what} did not come")


@pytest.mark.parametrize("after_a_look", [False, True])
async def test_a_watch_that_fails_is_told_and_tried_again(tmp_path: Path, after_a_look: bool) -> None:
    engine, heard = Blind(3, after_a_look=after_a_look), Listener()
    async with controlled(tmp_path / "run", engine, heard) as run:
        await until(lambda: len(heard.troubles) == 3, "the third trouble")
        assert {text for text, _, _ in heard.troubles} <= {
            "the API server does not answer",
            "the API server has gone away",
        }
        await until(lambda: engine.failures == 0, "a watch that works")
        state = run.state
        assert (state.label, len(state.attempts), state.restarts_used) == ("running", 1, 0)
        engine.finish(state.attempt.job or "")
        await until(lambda: run.state.ended, "the end")
        assert run.state.outcome == "succeeded"
    assert [times for _, times, _ in heard.troubles] == [1, 2, 3]
    assert heard.troubles[2][2] > heard.troubles[0][2], "each further pause is longer"


async def test_who_cannot_see_the_workers_still_hears_requests(tmp_path: Path) -> None:
    """With the pause in the controller's own loop a stop would wait for it, for up to 30 s."""
    engine, heard = Blind(1000), Listener()
    async with controlled(tmp_path / "run", engine, heard) as run:
        await until(lambda: heard.troubles and heard.troubles[-1][1] >= 3, "a pause of more than a second")
        looks = heard.looks
        await until(lambda: heard.looks > looks + 3, "a look around")
        run.ask_stop(by="ada")
        await until(lambda: run.state.ended, "the end")
        assert (run.state.outcome, len(run.state.attempts)) == ("stopped", 1)
