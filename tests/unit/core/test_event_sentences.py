"""Each event of a run's life, told as an on-call engineer reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_elastic.core.event_sentences import sentence, waiting
from airflow_elastic.core.machine import create, evolve
from airflow_elastic.core.severity import severity_of
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.models.start import Origin
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
from airflow_elastic.spec.status import (
    JobStatus,
    Progress,
    RankError,
    Wait,
    Waiting,
    WorkerPhase,
    WorkerStatus,
)

if TYPE_CHECKING:
    from airflow_elastic.spec.events import Event


def tell(events: list[Event]) -> list[str | None]:
    told, state = [], None
    for event in events:
        before, state = state, create(event) if state is None else evolve(state, event)
        told.append(sentence(event, before, state))
    return told


def graves(events: list[Event]) -> list[str]:
    levels, state = [], None
    for event in events:
        before, state = state, create(event) if state is None else evolve(state, event)
        levels.append(str(severity_of(event, before, state)))
    return levels


def created(**spec: object) -> ev.RunCreated:
    workers = Workers(count=2, min=1, max=4)
    return ev.RunCreated(
        0, RunSpec(("train.py",), name="mnist", **{"workers": workers, **spec}), True, "shell"
    )  # type: ignore[arg-type]


def failed(error: str = "ValueError: no") -> JobStatus:
    return JobStatus(
        (WorkerStatus("node-1", WorkerPhase.FAILED, errors=(RankError(1, 1, at=1, error=error),)),)
    )


LOST = JobStatus((WorkerStatus("node-0", WorkerPhase.RUNNING), WorkerStatus("node-1", WorkerPhase.LOST)))
DONE = JobStatus((WorkerStatus("node-0", WorkerPhase.SUCCEEDED),))


def test_copies_that_are_not_used_are_told_with_what_was_read_instead() -> None:
    _, _, refused, older, again = tell(
        [
            created(),
            ev.AttemptSubmitted(1, 1, "mnist-a1"),
            ev.CopyRefused(2, 1, 300, "node-1", "its bytes have changed. It was read from storage instead"),
            ev.CopyRefused(3, 1, 300, "node-0", "its bytes have changed", newest=200),
            ev.CopyRefused(4, 1, 300, "node-0", "its bytes have changed", newest=200),
        ]
    )
    assert refused == (
        "a copy of checkpoint 300 was not used by node-1: its bytes have changed. It was read from storage instead"
    )
    assert (
        older
        == "a copy of checkpoint 300 was not used by node-0: its bytes have changed; training goes on from 200"
    )
    assert again is None


def test_trouble_with_checkpoints_is_told() -> None:
    _, _, unsaved, _, aside, and_before, twice = tell(
        [
            created(),
            ev.AttemptSubmitted(1, 1, "mnist-a1"),
            ev.SaveFailed(2, 1, 300, "node-1", "no space left"),
            ev.CheckpointCommitted(3, 1, 340, "m"),
            ev.CheckpointQuarantined(4, 1, 340, 280, "its bytes have changed"),
            ev.CheckpointQuarantined(4, 1, 320, 280, "rank-00000.bin is missing"),
            ev.CheckpointQuarantined(4, 1, 320, 280, "rank-00000.bin is missing"),
        ]
    )
    assert unsaved == "step 300 is not saved as it should be, says node-1: no space left"
    assert aside == (
        "checkpoint 340 is damaged and was set aside, training goes on from 280: its bytes have changed"
    )
    assert and_before == (
        "checkpoint 320 is damaged and was set aside, training goes on from 280: rank-00000.bin is missing"
    )
    assert twice is None


def test_what_an_attempt_could_not_save_is_told_when_the_next_one_is_planned() -> None:
    *_, unsaved = tell(
        [
            created(),
            ev.AttemptSubmitted(1, 1, "mnist-a1"),
            ev.WorkersEnded(2, 1, LOST),
            ev.AttemptGone(3, 1),
            ev.SaveFailed(4, 1, 300, "node-1", "no space left"),
        ]
    )
    assert unsaved == "step 300 of attempt 1 is not saved as it should be, says node-1: no space left"


def test_an_attempt_with_a_tensorboard_beside_its_workers_says_how_to_open_it() -> None:
    options = {"image": "i", "namespace": "team", "tensorboard": {}}
    run = created(engine="job", engine_options=options, tensorboard=True)
    _, submitted = tell([run, ev.AttemptSubmitted(1, 1, "mnist-a1")])
    pod = "$(kubectl -n team get pods -l airflow-elastic/job=mnist-a1 -o name | head -n 1)"
    assert (submitted or "").endswith(
        f". To watch it in TensorBoard: kubectl -n team port-forward {pod} 6006"
    )


def test_a_run_that_loses_a_worker_scales_and_succeeds() -> None:
    assert tell(
        [
            created(),
            ev.AttemptSubmitted(1, 1, "mnist-a1"),
            ev.CheckpointCommitted(2, 1, 340, "m"),
            ev.WorkersEnded(3, 1, LOST, Progress(1, 3, step=357)),
            ev.AttemptGone(4, 1),
            ev.AttemptSubmitted(5, 2, "mnist-a2"),
            ev.ScaleRequested(6, "r1", 3, "operator ada"),
            ev.Scaled(7, 2, 3),
            ev.SaveRequested(8, "s1", "ada"),
            ev.SaveOrdered(9, 2, "s1"),
            ev.WorkersEnded(10, 2, DONE, Progress(2, 10, step=600, finished=True)),
            ev.AttemptGone(11, 2),
            ev.RunEnded(12, "succeeded", "training is complete"),
        ]
    ) == [
        "run mnist created: 2 workers, engine local, torchrun",
        "attempt 1 submitted: 2 workers, from the beginning",
        "checkpoint 340 committed",
        "node-1 was lost (its agent ended without a word): attempt 1 ends at step 357",
        "attempt 1 is gone: attempt 2 follows (restart 1 of 6)",
        "attempt 2 submitted: 2 workers, from step 340",
        "scale step 2 → 3 workers asked for by operator ada",
        "attempt 2 now has 3 workers",
        "checkpoint asked for by ada",
        "attempt 2 asked to save",
        "every worker succeeded: attempt 2 ends at step 600",
        "attempt 2 is gone, no worker is left",
        "run ended: succeeded (training is complete)",
    ]


def test_a_pause_is_told_with_its_length_and_its_place_in_the_budget() -> None:
    told = tell(
        [
            created(restart=RestartPolicy(backoff_seconds=4)),
            ev.AttemptSubmitted(1, 1, "j"),
            ev.WorkersEnded(2, 1, failed("ValueError: one")),
            ev.AttemptGone(3, 1),
            ev.AttemptSubmitted(4, 2, "j"),
            ev.WorkersEnded(5, 2, failed("ValueError: two")),
            ev.AttemptGone(6, 2),
            ev.BackoffElapsed(10, 3),
        ]
    )
    assert told[2] == "rank 1 on node-1 failed: ValueError: one: attempt 1 ends before its first step"
    assert told[-2:] == [
        "attempt 2 is gone: attempt 3 follows after a pause of 4 s (restart 2 of 6)",
        "pause over: attempt 3 begins",
    ]


def test_stopping_and_reopening() -> None:
    assert tell(
        [
            created(),
            ev.AttemptSubmitted(1, 1, "j"),
            ev.StopRequested(2, "r", "ada"),
            ev.CheckpointCommitted(3, 1, 12, "m"),
            ev.AttemptGone(4, 1),
            ev.RunEnded(5, "stopped", "ada"),
            ev.RunReopened(6),
            ev.OwnerChanged(7, "try 2"),
        ]
    )[2:] == [
        "stop asked for by ada: save, then end",
        "checkpoint 12 committed",
        "attempt 1 is gone, no worker is left",
        "run ended: stopped (ada)",
        "run reopened, it had stopped: budget and deadline start again, from step 12",
        "try 2 carries the run on",
    ]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            ev.Stalled(2, 1, 600.4, step=7),
            "no progress for 600 s since step 7: attempt 1 ends before its first step",
        ),
        (ev.DeadlinePassed(2), "the active deadline of 60 s has passed: save, then end"),
        (
            ev.ScaleFailed(2, 1, 3, "job is not there"),
            "attempt 1 could not be changed to 3 workers: job is not there; a new attempt will have them",
        ),
        (ev.ScaleRequested(2, "at-100", 1, "schedule"), "scale step 2 → 1 worker planned"),
        (
            ev.ScaleRequested(2, "plan", 2, "schedule"),
            "scale step to 2 workers planned: that is what the run has",
        ),
        (ev.ScaleRequested(2, "r", 99, "ada"), None),  # more than the run allows: nothing changes
        (ev.AttemptGone(2, 7), None),
    ],
)
def test_what_can_happen_to_a_live_attempt(event: Event, words: str | None) -> None:
    assert tell([created(active_deadline_seconds=60.0), ev.AttemptSubmitted(1, 1, "j"), event])[-1] == words


def test_a_refusal_by_the_engine() -> None:
    events: list[Event] = [created(), ev.SubmitRefusedByEngine(1, 1, "no such queue")]
    assert tell(events)[-1] == "attempt 1 refused by the engine: no such queue"


def _workers(*states: Waiting | WorkerPhase | None, reason: str | None = None) -> JobStatus:
    """One worker for each: one that waits, one in that phase, or a pending one of which nothing is known."""
    found = []
    for i, state in enumerate(states):
        phase = state if isinstance(state, WorkerPhase) else WorkerPhase.PENDING
        held = state if isinstance(state, Waiting) else None
        words = f"{reason} {i}" if reason and held else None
        found.append(WorkerStatus(f"node-{i}", phase, waiting=held, reason=words))
    return JobStatus(tuple(found))


RUNNING, LEFT = WorkerPhase.RUNNING, WorkerPhase.LEFT


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (
            _workers(RUNNING, Waiting.CAPACITY, RUNNING, Waiting.CAPACITY, reason="no room for"),
            "2 of 4 workers wait for capacity: no room for 1",
        ),
        (_workers(Waiting.STARTING, Waiting.PULLING, Waiting.STARTING), "1 of 3 workers pulls its image"),
        (_workers(Waiting.CAPACITY, Waiting.QUEUED, None), "1 of 3 workers is queued"),
        (_workers(Waiting.QUEUED, Waiting.QUEUED, LEFT), "all 2 workers are queued"),
        (_workers(Waiting.STARTING), "its worker starts"),
        (_workers(RUNNING, LEFT, RUNNING), "all 2 workers run"),
        (_workers(RUNNING), "its worker runs"),
        (_workers(None, RUNNING), None),
        (_workers(WorkerPhase.LOST, RUNNING), None),
        (_workers(), None),
    ],
)
def test_what_workers_wait_for(job: JobStatus, words: str | None) -> None:
    state = evolve(create(created()), ev.AttemptSubmitted(1, 1, "j"))
    assert waiting(state, job) == (words and f"attempt 1: {words}")


def test_only_what_is_pending_waits() -> None:
    held = WorkerStatus("node-0", WorkerPhase.RUNNING, waiting=Waiting.QUEUED)
    assert JobStatus((held,)).waiting is None
    assert JobStatus((held,)).wait is None
    assert _workers(Waiting.CAPACITY, RUNNING, reason="r").wait == Wait(Waiting.CAPACITY, 1, 2, "r 0")


def test_where_workers_have_disks_an_attempt_may_begin_later_than_is_known() -> None:
    spec = {"checkpoint": CheckpointPolicy(disk="/mnt/scratch")}
    ended, gone = ev.WorkersEnded(2, 1, LOST), ev.AttemptGone(3, 1)
    _, first, _, _, second = tell(
        [created(**spec), ev.AttemptSubmitted(1, 1, "j"), ended, gone, ev.AttemptSubmitted(4, 2, "k")]
    )
    assert first == "attempt 1 submitted: 2 workers, from the beginning"
    assert second == "attempt 2 submitted: 2 workers, from the beginning, or what workers have on disk"


def test_what_an_attempt_begins_with_is_told() -> None:
    start = replace(
        created(), origin=Origin("s3://models/digits", run="s3://runs/first", step=340, promotion=3)
    )
    _, first = tell([start, ev.AttemptSubmitted(1, 1, "j")])
    assert first == "attempt 1 submitted: 2 workers, from promotion 3 of s3://models/digits"


def test_a_worker_that_is_replaced_is_told() -> None:
    gone = WorkerStatus("node-1", WorkerPhase.LOST, replaceable=True)
    lost = JobStatus((WorkerStatus("node-0", WorkerPhase.RUNNING), gone))
    ended = ev.WorkersEnded(3, 1, lost, Progress(1, 3, step=7))
    _, _, *told = tell([created(), ev.AttemptSubmitted(1, 1, "j"), ended, ev.AttemptSubmitted(4, 2, "j")])
    assert told == [
        "node-1 was lost (its agent ended without a word): attempt 1 ends at step 7; attempt 2 follows "
        "(restart 1 of 6), in the same job",
        "attempt 2 begins in place: 2 workers, with others in place of node-1, from the beginning, or what "
        "workers have in memory",
    ]
    step = "from the beginning, or what workers have in memory"
    begun = f"attempt 2 begins in place: 2 workers, {{}} in place of node-1, {step}"
    first, following = ev.AttemptSubmitted(1, 1, "j"), ev.AttemptSubmitted(4, 2, "j", replacements=(2,))
    *_, named = tell([created(), first, ended, following])
    assert named == begun.format("node-2")
    *_, stood = tell([created(), first, ev.StandbyAsked(2, 1, (2,)), ended, following])
    assert stood == begun.format("node-2 (which stood by)")
    *_, refused = tell(
        [created(), ev.AttemptSubmitted(1, 1, "j"), ended, ev.RejoinRefused(4, 2, "no such size")]
    )
    assert refused == "attempt 2 cannot begin in place: no such size; the next one has a job of its own"


def test_an_agent_whose_ranks_have_failed_waits() -> None:
    """Only a standby worker stands by."""
    failed = WorkerStatus("node-1", WorkerPhase.FAILED)
    *_, told = tell([created(), ev.AttemptSubmitted(1, 1, "j"), ev.RanksFailed(2, 1, failed, 7)])
    assert told == "ranks of node-1 have failed, its agent waits for the next generation"


def test_how_grave_an_event_is() -> None:
    gone = ev.AttemptGone(4, 1)
    levels = graves(
        [
            created(restart=RestartPolicy(backoff_limit=1)),
            ev.AttemptSubmitted(1, 1, "mnist-a1"),
            ev.CheckpointCommitted(2, 1, 10, "k"),
            ev.WorkersEnded(3, 1, LOST),
            gone,
            ev.AttemptSubmitted(5, 2, "mnist-a2"),
            ev.Stalled(6, 2, 600.0, 12),
            ev.AttemptGone(7, 2),
            ev.RunEnded(8, "failed", "all restarts are used"),
        ]
    )
    assert levels == ["INFO", "INFO", "INFO", "WARNING", "WARNING", "INFO", "WARNING", "WARNING", "ERROR"]
    done = graves([created(), ev.AttemptSubmitted(1, 1, "a"), ev.WorkersEnded(3, 1, DONE), gone])
    assert set(done) == {"INFO"}
    scaled = [
        created(),
        ev.AttemptSubmitted(1, 1, "a"),
        ev.ScaleRequested(2, "r", 3, "ada"),
        ev.Scaled(3, 1, 3),
    ]
    assert set(graves(scaled)) == {"INFO"}
