"""Somebody chooses the checkpoint to go on from, or excludes a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from airflow_elastic.core.event_sentences import sentence
from airflow_elastic.core.machine import due, evolve
from airflow_elastic.core.state import Cause, Phase, RunState
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.actions import Delete, Finish, Pause, SetNewerAside, Submit
from airflow_elastic.spec.run import RestartPolicy
from airflow_elastic.spec.status import JobStatus, WorkerPhase, WorkerStatus
from tests.support.builders import LIVE, at_step, done, failed, rank, spec, story, worker

SAVED = (*LIVE, ev.CheckpointCommitted(2.0, 1, 10, "k10"), ev.CheckpointCommitted(3.0, 1, 20, "k20"))
ASKED = ev.ResumeRequested(4.0, "r", 10, "ada")


def then(state: RunState, *events: ev.Event) -> RunState:
    for event in events:
        state = evolve(state, event)
    return state


def test_the_attempt_ends_without_saving_and_the_next_one_begins_at_the_chosen_step() -> None:
    state = story(*SAVED, ASKED)
    assert due(state) == (Delete(1, 0.0),)
    state = evolve(state, ev.AttemptGone(5.0, 1, at_step(25)))
    assert due(state) == (SetNewerAside(2, 10),)
    state = evolve(state, ev.NewerSetAside(6.0, 2, 10, (20,), phases=0))
    assert due(state) == (Submit(2, 2),)
    assert state.checkpoint is not None
    assert (state.checkpoint.step, state.checkpoint.key) == (10, layout.manifest(10))
    assert (state.restarts_used, state.attempts[0].cause) == (0, Cause.RESUME)
    state = evolve(state, ev.AttemptSubmitted(7.0, 2, "job-a2"))
    assert state.attempt.from_step == 10
    state = evolve(state, ev.CheckpointCommitted(8.0, 2, 20, "k20"))  # the same step, trained again
    assert state.checkpoint is not None
    assert (state.checkpoint.step, state.checkpoint.attempt) == (20, 2)


def test_a_request_counts_once() -> None:
    """A controller may die between the journal and the mailbox: its successor reads the request again."""
    state = story(*SAVED, ASKED)
    assert evolve(state, ASKED) == state
    state = then(
        state, ev.AttemptGone(5.0, 1), ev.NewerSetAside(6.0, 2, 10), ev.AttemptSubmitted(7.0, 2, "j")
    )
    assert evolve(state, ASKED) == state
    assert evolve(state, replace(ASKED, request="another")).attempt.phase is Phase.ENDING


def test_a_checkpoint_that_is_gone_by_then_is_not_gone_on_from() -> None:
    state = story(*SAVED, ASKED, ev.AttemptGone(5.0, 1))
    state = evolve(state, ev.ResumeRefused(6.0, 2, 10, "it is gone"))
    assert due(state) == (Submit(2, 2),)
    assert state.checkpoint is not None
    assert state.checkpoint.step == 20


@pytest.mark.parametrize(
    "end",
    [
        (ev.WorkersEnded(3.5, 1, failed(), at_step(25)),),
        (ev.WorkersEnded(3.5, 1, done(), at_step(25, finished=True)),),
        (ev.Stalled(3.5, 1, 600.0, 25, at_step(25)),),
    ],
)
@pytest.mark.parametrize("policy", ["OnFailure", "Never"])
def test_a_request_while_an_attempt_ends_decides_what_follows(end: Sequence[ev.Event], policy: str) -> None:
    state = story(*SAVED, *end, run=spec(restart=RestartPolicy(policy=policy)))
    state = then(state, ASKED, ev.AttemptGone(5.0, 1))
    assert due(state) == (SetNewerAside(2, 10),)
    assert state.restarts_used == 0


def test_an_attempt_that_waits_for_its_turn_begins_at_the_chosen_step() -> None:
    fails = [
        event
        for number in (1, 2)
        for event in (
            ev.AttemptSubmitted(1.0, number, "j"),
            ev.WorkersEnded(2.0, number, failed(error=f"ValueError: {number}")),
            ev.AttemptGone(3.0, number),
        )
    ]
    state = story(*fails)
    assert due(state) == (Pause(3, 4.0),)
    state = then(state, ASKED, ev.BackoffElapsed(9.0, 3))
    assert due(state) == (SetNewerAside(3, 10),)


def test_agents_with_newer_states_do_not_go_on_in_place() -> None:
    agents = JobStatus(
        (
            WorkerStatus("node-0", WorkerPhase.RUNNING),
            worker("failed", errors=(rank(1, error="ValueError: bad"),), standby=True),
        )
    )
    ended = ev.WorkersEnded(4.0, 1, agents, at_step(25))
    in_place = story(*SAVED, ended)
    assert in_place.attempt.home == 1
    state = evolve(in_place, replace(ASKED, at=4.5))
    assert state.attempt.phase is Phase.ENDING
    assert due(evolve(state, ev.AttemptGone(5.0, 2))) == (SetNewerAside(3, 10),)


def test_a_run_that_is_told_to_stop_ends() -> None:
    state = story(*SAVED, ev.StopRequested(3.5, "s", "bob"))
    assert evolve(state, ASKED) == state
    state = then(story(*SAVED, ASKED), ev.StopRequested(4.5, "s", "bob"), ev.AttemptGone(5.0, 1))
    assert state.outcome == "stopped"
    assert due(state) == (SetNewerAside(2, 10),)  # when it is carried on, it goes on from there
    state = evolve(state, ev.NewerSetAside(6.0, 2, 10, (20,)))
    assert due(state) == (Finish("stopped", "stopped by bob"),)
    state = then(state, ev.RunEnded(7.0, "stopped", "stopped by bob"), ev.RunReopened(8.0))
    assert due(state) == (Submit(2, 2),)


def test_an_excluded_machine_is_avoided_until_it_is_allowed_again() -> None:
    excluded = ev.MachineExcluded(2.0, "r", "gpu-7", "ada")
    state = story(*LIVE, excluded)
    assert due(state) == ()  # the current attempt stays where it is
    assert (state.avoid, state.has_elsewhere) == (("gpu-7",), True)
    assert evolve(state, excluded) == state
    state = evolve(state, replace(excluded, request="r2", excluded=False))
    assert state.avoid == ()


def test_an_attempt_does_not_begin_in_place_on_an_excluded_machine() -> None:
    agents = JobStatus(
        (
            WorkerStatus("node-0", WorkerPhase.RUNNING, node="gpu-6"),
            worker("failed", node="gpu-7", errors=(rank(1, error="ValueError: bad"),), standby=True),
        )
    )
    ended = ev.WorkersEnded(4.0, 1, agents, at_step(25))
    assert story(*SAVED, ended).attempt.home == 1
    for machine, home in (("gpu-7", None), ("gpu-8", 1)):
        state = story(*SAVED, ev.MachineExcluded(3.5, "r", machine, "ada"), ended)
        assert state.attempt.home == home


def test_the_journal_says_who_asked_and_what_follows() -> None:
    state, said = story(*SAVED), []
    for event in (
        ASKED,
        ev.AttemptGone(5.0, 1),
        ev.NewerSetAside(6.0, 2, 10, (20,)),
        ev.MachineExcluded(7.0, "m", "gpu-7", "bob"),
        ev.MachineExcluded(8.0, "n", "gpu-7", "bob", excluded=False),
    ):
        before, state = state, evolve(state, event)
        said.append(sentence(event, before, state))
    assert said == [
        "ada asked to go on from checkpoint 10: attempt 1 ends",
        "attempt 1 is gone: attempt 2 follows (not counted)",
        "attempt 2 goes on from checkpoint 10; newer ones were set aside: 20",
        "machine gpu-7 excluded by bob: the next attempt uses other machines",
        "machine gpu-7 allowed by bob: the next attempt may use it",
    ]
