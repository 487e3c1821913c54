"""What training has saved last, where storage does not take it at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_elastic.adapters.records.job_files import Members
from airflow_elastic.runtime.agent.last_save import keep_last
from airflow_elastic.runtime.agent.worker import Stopped
from airflow_elastic.spec.errors import ElasticError, InvalidInput, StoreError, StoreFull, StoreUnfit
from airflow_elastic.spec.run import Health
from tests.support.training.saving import SavingWorker


@pytest.fixture
def worker(tmp_path: Path) -> SavingWorker:
    return SavingWorker(str(tmp_path / "run"))


def failing(*errors: ElasticError, beside: Callable[[], object] = lambda: None) -> Callable[[], None]:
    """Writes once it has failed with each of these."""
    left = [*errors]

    def persist() -> None:
        beside()
        if left:
            raise left.pop(0)

    return persist


@pytest.mark.parametrize("error", [StoreError("away"), StoreFull("full")])
def test_storage_is_waited_for(
    worker: SavingWorker, error: StoreError, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []
    worker.node.persist = failing(error, beside=lambda: tries.append(1))
    keep_last(worker.node)
    assert len(tries) == 2
    assert f"trying again in 1 s: {error}" in caplog.text


@pytest.mark.parametrize("error", [StoreUnfit("nobody may write there"), InvalidInput("no")])
def test_what_no_waiting_mends_is_tried_once(
    worker: SavingWorker, error: ElasticError, caplog: pytest.LogCaptureFixture
) -> None:
    worker.node.persist = failing(error, AssertionError("tried again"))  # type: ignore[arg-type]
    keep_last(worker.node)
    assert f"is not written: {error}" in caplog.text


def test_it_is_not_waited_for_until_that_is_taken_for_a_hang(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []
    worker = SavingWorker(str(tmp_path / "run"), health=Health(no_progress_seconds=0.5))
    worker.node.persist = failing(*[StoreFull("full")] * 1000, beside=lambda: tries.append(1))
    keep_last(worker.node)
    assert 1 < len(tries) < 10
    assert "is not written: full" in caplog.text


def test_a_worker_that_is_told_to_end_does(worker: SavingWorker) -> None:
    worker.node.persist = failing(*[StoreFull("full")] * 100, beside=worker.node.stop)
    with pytest.raises(Stopped):
        keep_last(worker.node)


def test_one_that_is_to_begin_anew_does(worker: SavingWorker, caplog: pytest.LogCaptureFixture) -> None:
    files = worker.node.files
    worker.node.persist = failing(
        *[StoreFull("full")] * 100,
        beside=lambda: files.create("members/0002.json", Members(2, (0,), 0.0)),
    )
    keep_last(worker.node)
    assert "full" in caplog.text
