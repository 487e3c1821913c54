"""What the lead worker tells of all the others, while the generation changes under the thread that tells it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.host.shared_page import Page
from airflow_elastic.adapters.records.job_files import Began, JobFiles, JobRecord, Meeting, Members
from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.runtime.agent.reporting.channels import LeadChannel
from airflow_elastic.runtime.agent.worker import Worker
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.status import Progress, WorkerUsage
from tests.support.builders import spec

TWO, ONE = Members(1, (0, 1), 0.0), Members(2, (0,), 0.0)


class Meanwhile(JobFiles):
    """Documents; when next a worker's own files are looked for, something happens."""

    happens: Callable[[], None] | None = None

    def node(self, index: int) -> Path:
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        return super().node(index)


@pytest.fixture
def files(tmp_path: Path) -> Meanwhile:
    return Meanwhile(tmp_path / "job")


@pytest.fixture
def lead(files: Meanwhile, tmp_path: Path) -> Worker:
    store = FolderStore(tmp_path / "run")
    run = spec(workers=Workers(2, min=1))
    return Worker(files, JobRecord("j", store.uri, 1, run, run.digest, "", sys.executable), 0, store)


def begin(lead: Worker, members: Members) -> None:
    """As the agent's main thread does when its workers have met."""
    lead.begin(members)
    lead.meeting_store = None
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))
    lead.files.create(f"rendezvous/{members.generation:04d}.json", Meeting("127.0.0.1", store.port))
    lead.files.create(f"rendezvous/{members.generation:04d}.began", Began(float(members.generation)))
    rank = Page.create(Path(f"{lead.rank_files}-rank-0.page"))
    rank.words[shared_page.ATTACHED] = 1
    rank.words[shared_page.STEP] = 10 * members.generation
    rank.close()
    lead.meeting_store = store


def worlds(told: Progress | None) -> list[tuple[int, int]]:
    assert told is not None
    return [(stretch.world_size, stretch.to_step) for stretch in told.stretches]


def test_a_generation_that_begins_meanwhile_takes_nothing_of_the_one_before_it(
    lead: Worker, files: Meanwhile
) -> None:
    tell = LeadChannel(lead)
    begin(lead, TWO)
    files.happens = lambda: begin(lead, ONE)
    assert worlds(tell(False)) == [(2, 10)]
    assert worlds(tell(False)) == [(2, 10), (1, 20)]


def test_an_attempt_that_begins_meanwhile_is_told_of_by_itself(lead: Worker, files: Meanwhile) -> None:
    tell = LeadChannel(lead)
    begin(lead, TWO)
    files.happens = lambda: begin(lead, Members(2, (0,), 0.0, attempt=2))
    first = tell(False)
    assert (first and first.attempt, worlds(first)) == (1, [(2, 10)])
    second = tell(False)
    assert (second and second.attempt, worlds(second)) == (2, [(1, 20)])


def test_the_lead_tells_what_each_worker_uses(lead: Worker, files: Meanwhile) -> None:
    """As far as it has heard of it; what cannot be read counts as not heard."""
    tell = LeadChannel(lead)
    begin(lead, TWO)
    first = tell(False)
    assert first is not None
    assert first.usage == ()
    mine, other = WorkerUsage("node-0", 1.0, cpu=0.5), WorkerUsage("node-1", 2.0, memory_bytes=7)
    lead.usage = mine
    lead.meeting_store.set("used/1", json.dumps(encode(other)))
    told = tell(False)
    assert told is not None
    assert told.usage == (mine, other)
    lead.meeting_store.set("used/1", "no JSON")
    told = tell(False)
    assert told is not None
    assert told.usage == (mine,)
