"""After a hang before the first step of a run, its ranks start in new processes: forks may be why they hang."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.records.reports import (
    ColdStart,
    read_cold_start,
    write_cold_start,
    write_progress,
)
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control.stacks import with_stacks
from airflow_elastic.core.health.deadlines import overdue
from airflow_elastic.core.state import RunState
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.run import Health, RestartPolicy, RunSpec
from airflow_elastic.spec.status import Progress, Stretch
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.builders import LIVE, at_step, lost, spec, story, worker
from tests.support.driving import Listener, controlled
from tests.support.machine.patience import until_async

#: When ranks have been silent for longer than any limit.
LATE = 100_000.0

SECOND = (ev.AttemptGone(6.0, 1), ev.BackoffElapsed(7.0, 2), ev.AttemptSubmitted(8.0, 2, "job-a2"))


def run_of(**changes: Any) -> RunSpec:
    """A run whose workers' answers are not waited for long: there are no workers."""
    return spec(health=Health(no_progress_seconds=0.01), **changes)


def starting(attempt: int = 1, *before: Stretch) -> Progress:
    """A report of ranks that were started, and have not done a step since."""
    stretch = Stretch(len(before) + 1, world_size=2, workers=2, started_at=1.0)
    return at_step(0, attempt=attempt, moved_at=1.0, stretches=(*before, stretch))


async def hang(store: Store, state: RunState, progress: Progress) -> ev.Stalled:
    """The hang that a controller sees late, with what it has found out about it."""

    async def hear() -> None:
        pass

    (found,) = await with_stacks(lambda: [*overdue(state, progress, LATE)], store, state, hear)
    assert isinstance(found, ev.Stalled)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "run"))


async def test_the_first_hang_decides_that_ranks_start_cold(store: Store) -> None:
    found = await hang(store, story(*LIVE, run=run_of()), starting())
    assert found.of_fork
    assert read_cold_start(store) == ColdStart(LATE, 1)


@pytest.mark.parametrize("changes", [{"launcher_options": {"start": "cold"}}, {"launcher": "python"}])
async def test_ranks_that_are_no_forks_do_not_hang_because_of_forks(
    changes: dict[str, Any], store: Store
) -> None:
    found = await hang(store, story(*LIVE, run=run_of(**changes)), starting())
    assert not found.of_fork
    assert read_cold_start(store) is None


@pytest.mark.parametrize(
    "progress",
    [at_step(7, moved_at=1.0), starting(1, *at_step(7).stretches)],
    ids=["now", "before a scale step"],
)
async def test_ranks_that_have_made_a_step_do_not_hang_because_of_forks(
    progress: Progress, store: Store
) -> None:
    found = await hang(store, story(*LIVE, run=run_of()), progress)
    assert not found.of_fork
    assert read_cold_start(store) is None


REOPENED = (
    ev.StopRequested(5.5, "request", "ada"),
    ev.AttemptGone(6.0, 1),
    ev.RunEnded(6.5, "stopped", "stopped by ada"),
    ev.RunReopened(7.0),
    ev.AttemptSubmitted(8.0, 2, "job-a2"),
)


@pytest.mark.parametrize(
    "then", [(ev.WorkersEnded(5.0, 1, lost(), at_step(7)), *SECOND), REOPENED], ids=["lost", "reopened"]
)
async def test_an_earlier_attempt_that_came_to_a_step_clears_forks(
    then: tuple[ev.Event, ...], store: Store
) -> None:
    """Also if the run was reopened since: only the limit of a start forgets the earlier ones."""
    then = tuple(
        replace(one, progress=at_step(7)) if isinstance(one, ev.AttemptGone) else one for one in then
    )
    state = story(*LIVE, *then, run=run_of())
    assert (state.attempt.number, state.label) == (2, "running")
    found = await hang(store, state, starting(2))
    assert found.step is None
    assert not found.of_fork
    assert read_cold_start(store) is None


async def test_a_hang_that_follows_a_cold_start_is_not_of_forks(store: Store) -> None:
    """Ranks of the second attempt were no forks. They hang as those of the first one did."""
    state = story(*LIVE, ev.Stalled(5.0, 1, 1.0, None, starting()), *SECOND, run=run_of())
    written = ColdStart(5.0, 1)
    write_cold_start(store, written)
    assert (state.attempt.number, state.label) == (2, "running")
    assert not (await hang(store, state, starting(2))).of_fork
    assert read_cold_start(store) == written


@pytest.mark.parametrize("rank", [None, 1], ids=["by a controller", "by an agent"])
async def test_what_was_decided_in_this_attempt_is_told(rank: int | None, store: Store) -> None:
    """A controller that died before it wrote the event has left the decision; so has an agent whose rank crashed."""
    written = ColdStart(5.0, 1, rank)
    write_cold_start(store, written)
    assert (await hang(store, story(*LIVE, run=run_of()), starting())).of_fork
    assert read_cold_start(store) == written


async def test_a_decision_that_cannot_be_stored_is_not_told(tmp_path: Path, store: Store) -> None:
    (tmp_path / "run" / layout.COLD_START).mkdir(parents=True)
    assert not (await hang(store, story(*LIVE, run=run_of()), starting())).of_fork


async def test_a_controller_decides_in_the_first_attempt_and_not_again(tmp_path: Path) -> None:
    """The journal has what it decided, and the failure says so."""
    health = Health(no_progress_seconds=0.05, start_seconds=0.05)
    restart = RestartPolicy(backoff_limit=5, backoff_seconds=0.01)
    async with controlled(tmp_path / "run", FakeEngine(), Listener(), health=health, restart=restart) as run:
        for number in (1, 2):
            await until_async(lambda n=number: run.state.attempt.number == n, f"attempt {number}")  # type: ignore[misc]
            await until_async(lambda: run.state.attempt.submitted_at, "its submission")
            write_progress(run.store, starting(number))
        await until_async(lambda: run.state.attempt.number == 3, "the second hang to be seen")
        cold = read_cold_start(run.store)
        assert cold is not None
        assert (cold.attempt, cold.rank) == (1, None)
        stalled = [event for event in Journal(run.store).read() if isinstance(event, ev.Stalled)]
        assert [(event.attempt, event.of_fork) for event in stalled] == [(1, True), (2, False)]
        reasons = [attempt.failure.reason for attempt in run.state.attempts if attempt.failure]
        assert ["in case forks make them hang" in reason for reason in reasons] == [True, False]


async def test_a_run_that_has_trained_keeps_its_forks_after_a_loss(tmp_path: Path) -> None:
    """The same by a controller, from its own reports: a first step, a lost worker, and a hang of the next attempt."""
    engine, health = FakeEngine(), Health(no_progress_seconds=0.05, start_seconds=5.0)
    restart = RestartPolicy(backoff_limit=5, backoff_seconds=0.01)
    async with controlled(tmp_path / "run", engine, Listener(), health=health, restart=restart) as run:
        await until_async(lambda: run.state.attempt.submitted_at, "the workers")
        now = time.time()
        first = replace(at_step(7).stretches[0], started_at=now - 0.02, first_step_at=now)
        write_progress(run.store, at_step(7, moved_at=now + 1000.0, stretches=(first,)))
        await until_async(lambda: run.progress(run.state), "a report")
        engine.end_worker(run.state.attempt.job or "", 1, worker("lost"))
        await until_async(lambda: run.state.attempt.number == 2, "attempt 2")
        await until_async(lambda: run.state.attempt.submitted_at, "its submission")
        write_progress(run.store, starting(2))
        await until_async(lambda: run.state.attempt.number == 3, "the hang to be seen")
        (stalled,) = (event for event in Journal(run.store).read() if isinstance(event, ev.Stalled))
        assert stalled.longest_start is not None
        assert (stalled.attempt, stalled.of_fork) == (2, False)
        assert read_cold_start(run.store) is None
