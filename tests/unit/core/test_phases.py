"""The trainings of a run in its journal, status and page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli.inspect.samples import verify_samples
from airflow_elastic.core.event_sentences import sentence
from airflow_elastic.core.health.deadlines import overdue
from airflow_elastic.core.machine import evolve
from airflow_elastic.core.phases import named, phase_sentence
from airflow_elastic.core.status_document import document
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.checkpoints.phases import PhaseRecord
from airflow_elastic.spec.status import Progress
from tests.support.builders import lost, story
from tests.support.runs.attempts import Killed, to_the_end
from tests.unit.runtime.session.test_phases_and_epochs import Fate, net, train

FIRST = PhaseRecord("pretrain", 0, 40, complete=True, sealed=True, results={"accuracy": 0.98, "best": "b"})
SECOND = PhaseRecord("finetune", 40, 7)


def progress(*phases: PhaseRecord, attempt: int = 1) -> Progress:
    return Progress(attempt, 20.0, step=phases[-1].to_step, attached=True, phases=phases)


def test_a_phase_has_ended_when_a_checkpoint_says_so() -> None:
    state = story(ev.AttemptSubmitted(1.0, 1, "a1"), ev.CheckpointCommitted(12.0, 1, 39, "k"))
    assert list(overdue(state, progress(FIRST, SECOND), 20.0)) == []
    before = evolve(state, ev.CheckpointCommitted(21.0, 1, 40, "k"))
    (event,) = overdue(before, progress(FIRST, SECOND), 22.0)
    assert event == ev.PhaseCompleted(22.0, 1, 0, "pretrain", 40, 40, {"accuracy": 0.98, "best": "b"})
    state = evolve(before, event)
    assert sentence(event, before, state) == (
        "phase pretrain ended after 40 steps, at step 40, accuracy 0.98, best b"
    )
    assert evolve(state, event) == state
    assert list(overdue(state, progress(FIRST, SECOND), 23.0)) == []


def test_a_restart_tells_only_of_those_that_are_new() -> None:
    state = story(
        ev.AttemptSubmitted(1.0, 1, "a1"),
        ev.CheckpointCommitted(12.0, 1, 40, "k"),
        ev.PhaseCompleted(13.0, 1, 0, "pretrain", 40, 40),
        ev.WorkersEnded(14.5, 1, lost(), progress(FIRST, SECOND)),
        ev.AttemptGone(15.0, 1),
        ev.AttemptSubmitted(15.5, 2, "a2"),
        ev.CheckpointCommitted(30.0, 2, 50, "k"),
    )
    ended = replace(SECOND, steps=10, complete=True)
    assert list(overdue(state, progress(FIRST, ended), 31.0)) == []  # an old report
    (event,) = overdue(state, progress(FIRST, ended, attempt=2), 31.0)
    assert (event.phase, event.name, event.step) == (1, "finetune", 50)  # type: ignore[union-attr]


def test_the_status_has_them_in_words() -> None:
    state = story(ev.AttemptSubmitted(1.0, 1, "a1"))
    phases = document("/runs/a", state, progress(FIRST, SECOND), 30.0)["phases"]
    assert [phase_sentence(phase, number, over=False) for number, phase in enumerate(phases)] == [
        "phase pretrain: 40 steps, complete, accuracy 0.98, best b",
        "phase finetune: 7 steps, at work",
    ]
    assert phase_sentence(phases[1], 1, over=True) == "phase finetune: 7 steps, not complete"
    assert named(phases)
    assert not named([{"name": ""}])


def test_each_sample_of_each_phase_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed in the second, which has other data."""

    def script(run: Session) -> bool:
        model, optimizer = net()
        for name, length in (("teach", 22), ("learn", 13)):
            with run.phase(name):
                run.restore(model, optimizer)
                for _ in run.epochs(2):
                    for (x,) in run.loader(TensorDataset(torch.randn(length, 4)), global_batch=4):
                        train(run, model, optimizer, x, Fate())
                        if (run.attempt, run.steps) == (1, 17):
                            raise Killed
        run.finish()
        return True

    run = tmp_path / "run"
    assert to_the_end(run, CheckpointPolicy(every_steps=3, account_samples=True), script) == (True, 2)
    assert verify_samples(open_store(str(run)), as_json=False) == 0
    assert capsys.readouterr().out.splitlines() == [
        "phase 0, epoch 0: 22 samples, by 1 rank",
        "phase 0, epoch 1: 22 samples, by 1 rank",
        "phase 1, epoch 0: 13 samples, by 1 rank",
        "phase 1, epoch 1: 13 samples, by 1 rank",
        "70 samples of 20 steps: each counts exactly once",
    ]
