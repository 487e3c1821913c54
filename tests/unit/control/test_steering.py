"""Requests of people: what is refused, and what the controller finds in its mailbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.adapters.records.reports import write_status
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import Run, start_run
from airflow_elastic.control.poll import events_of
from airflow_elastic.core.status_document import document, placement_of
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.status import JobStatus, WorkerPhase, WorkerStatus
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.builders import spec


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
