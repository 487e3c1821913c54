"""Orders to save come to the ranks, and each of them once."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.host.shared_page import Page
from airflow_elastic.adapters.records.job_files import Members
from airflow_elastic.adapters.records.reports import Orders, write_orders
from airflow_elastic.runtime.agent.reporting.reporter import Reporter
from airflow_elastic.spec.errors import StoreError
from tests.support.training.saving import SavingWorker


class Agent:
    """A worker's agent, whose ranks are pages."""

    def __init__(self, run: Path, *, generation: int = 1, attempt: int | None = None) -> None:
        self.worker = SavingWorker(str(run))
        self.node = self.worker.node
        self.node.members = None
        self.reporter = Reporter(self.node, lambda last: None)
        self.begin(generation, attempt=attempt)

    def begin(self, generation: int, *, attempt: int | None = None) -> None:
        self.node.begin(Members(generation, (0,), 0.0, attempt=attempt))
        self.page = Page.create(Path(f"{self.node.rank_files}-rank-0.page"))

    def order(self, name: str) -> None:
        write_orders(self.node.store, self.node.attempt, Orders(save=name))

    @property
    def told(self) -> float:
        """How many orders this generation's ranks have been told of."""
        self.reporter.now()
        return self.page.words[shared_page.SAVE]


def test_each_order_is_told_once(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    assert agent.told == 0
    agent.order("first")
    assert (agent.told, agent.told) == (1, 1)
    agent.order("second")
    assert agent.told == 2


def test_what_was_ordered_before_a_scale_step_is_not_ordered_again(tmp_path: Path) -> None:
    """The ranks before it have saved when they stopped, at the latest."""
    agent = Agent(tmp_path)
    agent.order("first")
    assert agent.told == 1
    agent.page.words[shared_page.PARKED] = 1
    agent.begin(2)
    assert agent.told == 0
    agent.order("second")
    assert agent.told == 1
    agent.page.words[shared_page.PARKED] = 1
    agent.begin(3, attempt=2)
    assert agent.told == 0
    agent.order("third")
    assert agent.told == 1


@pytest.mark.parametrize("begun", [False, True])
def test_an_order_that_nobody_has_answered_is_told_to_the_next_ranks(begun: bool, tmp_path: Path) -> None:
    """The ones before have not come to begin, or have not saved in the time that they had."""
    agent = Agent(tmp_path)
    if not begun:
        Path(f"{agent.node.rank_files}-rank-0.page").unlink()
    agent.order("first")
    agent.reporter.now()
    agent.begin(2)
    assert agent.told == 1


def test_a_worker_that_comes_does_not_take_an_old_order_for_a_new_one(tmp_path: Path) -> None:
    first = Agent(tmp_path)
    first.order("first")
    assert first.told == 1
    other = Agent(tmp_path, generation=2)
    assert other.told == 0
    other.order("second")
    assert other.told == 1


def test_a_worker_of_an_attempt_whose_workers_are_all_new_is_told(tmp_path: Path) -> None:
    agent = Agent(tmp_path, generation=2, attempt=2)
    agent.order("first")
    assert agent.told == 1


@pytest.mark.parametrize(
    "error", [StoreError("the disk is full"), OSError("the disk is full"), KeyError("the disk is full")]
)
def test_what_fails_each_second_does_not_fill_the_log(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = True

    def tell(last: bool) -> None:
        if failing:
            raise error

    caplog.set_level("INFO")
    reporter = Reporter(Agent(tmp_path).node, tell)
    for _ in range(200):
        reporter.now()
    failing = False
    reporter.now()
    reporter.now()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 10, "1, 2, 4, 8, 16, 32, 64, 128, 192, and the end"
    assert said[0].startswith("reporting failed, trying again: ")
    assert "the disk is full" in said[0]
    assert said[-2].startswith("reporting failed 192 times in a row")
    assert said[-1] == "reporting works again, after 200 failures"
    unexpected = isinstance(error, KeyError)
    assert bool(caplog.records[0].exc_info) is unexpected
    assert caplog.records[0].levelname == ("ERROR" if unexpected else "WARNING")
