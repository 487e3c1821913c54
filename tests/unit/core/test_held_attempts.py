"""Attempts that the engine does not take yet: a quota, a webhook, a queue that was closed meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Forbidden, Invalid, KubeError, NoSuchKind, OverQuota
from airflow_elastic.core.event_sentences import sentence
from airflow_elastic.core.machine import due, evolve
from airflow_elastic.core.state import Cause, Phase, RunState
from airflow_elastic.core.status_document import document
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.watch.api_errors import refusal
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.actions import Delete, Finish, Submit
from airflow_elastic.spec.errors import SubmitHeld, SubmitRefused
from airflow_elastic.spec.status import WorkerPhase, WorkerStatus
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.builders import LIVE, lost, story
from tests.support.driving import Listener, controlled
from tests.support.machine.patience import until_async

CLOSED = "the cluster refuses to create podgroups: can only submit PodGroup to queue with state `Open`"
CLOSED_FOR = ev.SubmitRefusedByEngine(5.0, 2, CLOSED, for_now=True)


def second() -> RunState:
    """The first attempt has lost a worker, the second one is to be submitted."""
    return story(*LIVE, ev.WorkersEnded(2.0, 1, lost()), ev.AttemptGone(3.0, 1))


def test_a_refusal_by_a_rule_of_the_cluster_is_waited_out_between_attempts() -> None:
    before = second()
    state = evolve(before, CLOSED_FOR)
    assert (due(state), state.restarts_used) == ((Submit(2, 2),), before.restarts_used)
    assert (
        sentence(CLOSED_FOR, before, state)
        == f"attempt 2 is refused for now, and waits to be accepted: {CLOSED}"
    )
    told = document("uri", state, None, 6.0)
    waiting = {"state": "queued", "workers": 2, "of": 2, "reason": CLOSED}
    assert (told["state"], told["waiting"]) == ("queued", waiting)
    taken = evolve(state, ev.AttemptSubmitted(9.0, 2, "job-a2"))
    assert (taken.attempt.phase, taken.attempt.wait) == (Phase.LIVE, None)
    assert document("uri", taken, None, 10.0)["waiting"] is None


@pytest.mark.parametrize("for_now", [True, False])
def test_a_first_attempt_that_is_refused_stays_refused(for_now: bool) -> None:
    state = story(ev.SubmitRefusedByEngine(1.0, 1, CLOSED, for_now=for_now))
    assert due(state) == (Delete(1, 0.0),)
    assert due(evolve(state, ev.AttemptGone(2.0, 1))) == (Finish("failed", CLOSED),)


def test_what_no_rule_of_the_cluster_refuses_is_final_for_any_attempt() -> None:
    state = evolve(second(), ev.SubmitRefusedByEngine(5.0, 2, "another run's job has that name"))
    assert due(state) == (Delete(2, 0.0),)


def test_a_run_that_is_reopened_has_a_first_attempt_again() -> None:
    ended = evolve(second(), ev.StopRequested(4.0, "r", "me"))
    ended = evolve(evolve(ended, ev.AttemptGone(5.0, 2)), ev.RunEnded(6.0, "stopped", "stopped by me"))
    reopened = evolve(ended, ev.RunReopened(7.0))
    assert due(evolve(reopened, ev.SubmitRefusedByEngine(8.0, 3, CLOSED, for_now=True))) == (Delete(3, 0.0),)


def test_a_quota_that_is_used_up_is_waited_out_by_any_attempt_and_told_once() -> None:
    state = story(ev.SubmitHeldByEngine(1.0, 1, "exceeded quota: used: pods=2"))
    assert due(state) == (Submit(1, 2),)
    assert evolve(state, ev.SubmitHeldByEngine(2.0, 1, "exceeded quota: used: pods=3")) == state
    other = evolve(state, ev.SubmitHeldByEngine(2.0, 1, "the queue is closed"))
    assert other.attempt.held == "the queue is closed"


def test_who_waits_may_ask_for_another_number_of_workers() -> None:
    """The refused one may exist in part, with the old number: it goes first."""
    state = evolve(evolve(second(), CLOSED_FOR), ev.ScaleRequested(6.0, "r", 1, "me"))
    assert (due(state), state.attempt.cause) == ((Delete(2, 30.0),), Cause.SCALE_STEP)
    state = evolve(state, ev.AttemptGone(7.0, 2))
    assert (due(state), state.restarts_used) == ((Submit(3, 1),), 1)
    again = evolve(state, ev.SubmitRefusedByEngine(8.0, 3, CLOSED, for_now=True))
    assert due(again) == (Submit(3, 1),)


def test_who_waits_can_be_stopped() -> None:
    state = evolve(evolve(second(), CLOSED_FOR), ev.StopRequested(6.0, "r", "me"))
    assert state.attempt.phase is Phase.ENDING


def test_a_journal_of_an_earlier_release_is_read() -> None:
    plain: dict[str, Any] = {"event": "SubmitRefusedByEngine", "at": 1.0, "attempt": 1, "reason": "no"}
    assert ev.event_from_dict(plain) == ev.SubmitRefusedByEngine(1.0, 1, "no", for_now=False)


class Refusing(FakeEngine):
    """Refuses so many jobs, after the first one."""

    def __init__(self, *answers: Exception) -> None:
        self.answers = [*answers]

    async def submit(self, job: Job) -> None:
        if job.attempt > 1 and self.answers:
            raise self.answers.pop(0)
        await super().submit(job)


async def test_the_controller_tries_again_until_the_job_is_taken(tmp_path: Path) -> None:
    FakeEngine.jobs.clear()
    engine = Refusing(SubmitHeld("exceeded quota"), SubmitRefused(CLOSED, for_now=True))
    heard = Listener()
    async with controlled(tmp_path / "run", engine, heard) as run:
        await until_async(lambda: run.state.attempt.job, "the first attempt")
        engine.end_worker(run.state.attempt.job or "", 1, WorkerStatus("node-1", WorkerPhase.LOST))
        await until_async(
            lambda: run.state.attempt.number == 2 and run.state.attempt.job, "the second attempt"
        )
        engine.finish(run.state.attempt.job or "")
        await until_async(lambda: run.state.ended, "the end")
        state = run.state
    assert (state.outcome, state.restarts_used, engine.answers) == ("succeeded", 1, [])
    assert not heard.troubles, "it is queued, and nothing is out of reach"


def test_what_an_answer_of_the_api_server_means_for_a_job() -> None:
    held = refusal(OverQuota("exceeded quota"))
    assert isinstance(held, SubmitHeld)
    for final in (Invalid(CLOSED), Forbidden("no rights"), NoSuchKind("no such kind")):
        no = refusal(final)
        assert isinstance(no, SubmitRefused)
        assert no.for_now, "people may change it"
    away = KubeError("it does not answer")
    assert refusal(away) is away
    older = refusal(Invalid('strict decoding error: unknown field "spec.scheduling"'))
    assert str(older).endswith("queueing: native needs Kubernetes 1.37")
