"""A server of the Brain that holds its connections, and answers no more: as on a host that stands still."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from airflow_elastic.brain.database import Database
from airflow_elastic.brain.errors import URL_VARIABLE
from airflow_elastic.control.scaling import past_runs
from airflow_elastic.control.scaling.past_runs import PastRuns, PastRunsObserver
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.scaling.observation import Capacity, Share
from tests.support.builders import LIVE, story
from tests.support.machine.patience import until_async
from tests.support.runs.watched import submitted, write_run
from tests.unit.control.test_past_runs import SHARED

_OTHERS = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


@contextmanager
def silent() -> Iterator[None]:
    """All processes of the server that have a connection stand still; a new connection would get another process."""
    database = Database()
    with database.reading() as session:
        found = list(session.scalars(text(_OTHERS)))
    database.close()
    assert found
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in found:
            os.kill(pid, signal.SIGCONT)


async def test_it_holds_up_no_look_and_is_asked_again_when_it_answers(
    server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(URL_VARIABLE, server)
    past, state = PastRuns(), story(*LIVE, run=SHARED)

    async def share() -> Share | None:
        return await past.share("/runs/silent", state, Capacity(5.0, 0), (), 8)

    first = await share()
    assert first is not None
    monkeypatch.setattr(past_runs, "ANSWER_SECONDS", 0.3)
    with silent():
        assert await share() is None
        threads = threading.active_count()
        for _ in range(3):
            assert await share() is None
        assert threading.active_count() == threads, "one question at a time"
        await past.close()
    warnings = [one.getMessage() for one in caplog.records if "no answer" in one.getMessage()]
    assert len(warnings) == 1
    assert await until_async(share, "an answer") == first
    await past.close()


async def test_it_does_not_hold_up_the_end_of_a_run(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, server)
    monkeypatch.setattr(past_runs, "END_SECONDS", 0.3)
    store = write_run(tmp_path / "run", submitted(), brain="cluster")
    observer, state = PastRunsObserver(store), story(*LIVE, ev.RunEnded(9.0, "succeeded", "done"), run=SHARED)
    database = Database()
    with database.writing() as session:  # others wait for this transaction
        session.execute(text("LOCK TABLE allocation, run"))
        await observer.on_end(state)
    database.close()
