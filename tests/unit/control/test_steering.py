"""Requests of people: what is refused, and what the controller finds in its mailbox."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.adapters.records.reports import write_status
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import Controller, Run, start_run
from airflow_elastic.control.poll import events_of
from airflow_elastic.core.status_document import document, placement_of
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.status import JobStatus, WorkerPhase, WorkerStatus
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.builders import spec
from tests.support.machine.patience import PATIENCE_SECONDS


def on_cluster(folder: Path, *machines: str) -> Run:
    """A run whose controller has last seen a worker on each of these machines."""
    run = start_run(open_store(str(folder)), spec(engine="job"), engine=FakeEngine())
    workers = [
        WorkerStatus(f"node-{i}", WorkerPhase.RUNNING, node=machine) for i, machine in enumerate(machines)
    ]
    placement = placement_of(JobStatus(tuple(workers)))
    write_status(run.store, document(run.store.uri, run.state, None, 1.0, None, placement))
    return run


def test_a_machine_is_excluded_that_a_worker_is_on(tmp_path: Path) -> None:
    run = on_cluster(tmp_path, "gpu-1", "gpu-2")
    with pytest.raises(InvalidInput, match="given 'gpu-7'; allowed: gpu-1, gpu-2"):
        run.ask_exclude("gpu-7", by="ada")
    with pytest.raises(InvalidInput, match="given 'gpu-1'; allowed: none is known yet"):
        run.ask_exclude("gpu-1", by="ada", exclude=False)
    run.ask_exclude("gpu-1", by="ada")
    (request,) = Mailbox(run.store).read()
    (event,) = events_of(request, 5.0)
    assert event == ev.MachineExcluded(5.0, request.id, "gpu-1", "ada")


def test_no_checkpoint_is_gone_on_from_that_does_not_exist(tmp_path: Path) -> None:
    run = on_cluster(tmp_path)
    with pytest.raises(InvalidInput, match="there are: none"):
        run.ask_resume(10, by="ada")
    assert Mailbox(run.store).read() == []


async def test_a_request_is_not_lost_where_another_controller_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has journaled something else at that moment. Seen before: the request was removed unread."""
    engine = FakeEngine()
    run = start_run(open_store(str(tmp_path)), spec(engine_options={"seconds": 3600.0}), engine=engine)
    run.ask_stop(by="ada")
    rival = Journal(run.store)
    append = Journal.append
    overtaken: list[int] = []

    def late(journal: Journal, seq: int, event: ev.Event) -> bool:
        if isinstance(event, ev.StopRequested) and not overtaken:
            overtaken.append(seq)
            append(rival, seq, ev.ScaleRequested(1.0, "r", 1, "bob"))
        return append(journal, seq, event)

    monkeypatch.setattr(Journal, "append", late)
    state = await asyncio.wait_for(Controller(run.store, engine, poll_seconds=0.02).drive(), PATIENCE_SECONDS)
    assert overtaken
    assert (state.outcome, state.reason, state.target) == ("stopped", "stopped by ada", 1)
