"""What the status says where it has the same from two sides."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from airflow_elastic.cli.inspect.status import _last_recovery, _position, _ranks
from airflow_elastic.core.event_sentences import sizes
from airflow_elastic.core.machine import evolve
from airflow_elastic.core.status_document import document as status
from airflow_elastic.spec import events as ev
from tests.support.builders import LIVE, at_step, failed, story


def test_the_loss_of_a_step_and_a_loss_of_the_scripts_own_have_two_names() -> None:
    document = {
        "step": 192,
        "total_steps": 192,
        "epoch": 3,
        "loss": 0.07,
        "metrics": {"accuracy": 0.9},
        "samples": {"seen": 0, "per_second": None},
        "ended_at": 1.0,
    }
    assert "step loss 0.07, accuracy 0.9" in _position(document)
    told = _position({**document, "metrics": {"loss": 0.06, "accuracy": 0.9}})
    assert "step loss 0.07, loss 0.06, accuracy 0.9" in told


def test_what_was_known_last_is_kept_where_the_next_attempt_fails_before_its_first_step() -> None:
    told = at_step(8, loss=0.25, samples_per_second=640.0, metrics={"lr": 0.1}, total_steps=20, epoch=3)
    state = story(
        *LIVE,
        ev.WorkersEnded(2.0, 1, failed(error="ValueError: a"), told),
        ev.AttemptGone(3.0, 1, told),
        ev.AttemptSubmitted(4.0, 2, "job-a2"),
    )
    young = at_step(0, attempt=2, stretches=(), samples=0)
    live = status("/runs/x", state, young, 5.0)
    assert (live["epoch"], live["samples"]["seen"]) == (3, told.samples)
    assert (live["loss"], live["metrics"], live["samples"]["per_second"]) == (0.25, {"lr": 0.1}, 0.0)
    for event in (
        ev.WorkersEnded(6.0, 2, failed(error="ValueError: b"), young),
        ev.AttemptGone(7.0, 2, young),
        ev.RunEnded(8.0, "failed", "x"),
    ):
        state = evolve(state, event)
    over = status("/runs/x", state, None, 9.0)
    assert (over["epoch"], over["samples"]["seen"]) == (3, told.samples)
    assert (over["loss"], over["metrics"], over["samples"]["per_second"]) == (0.25, {"lr": 0.1}, 640.0)


def test_an_attempt_shows_the_sizes_that_it_has_had() -> None:
    stretches = [{"workers": count} for count in (2, 2, 3)]
    assert sizes({"workers": 3, "stretches": stretches}) == "2 → 3"
    assert sizes({"workers": 1, "stretches": stretches}) == "2 → 3 → 1"
    assert sizes({"workers": 2, "stretches": []}) == "2"


def test_a_run_that_has_lost_its_steps_says_how_far_it_was() -> None:
    told = at_step(8, loss=0.25, total_steps=20)
    state = story(
        *LIVE, ev.WorkersEnded(2.0, 1, failed(error="ValueError: a"), told), ev.AttemptGone(3.0, 1, told)
    )
    position = _position(status("/runs/x", state, None, 5.0))
    assert position.startswith("step 0/20 again, after step 8, epoch 0, step loss 0.25")
    assert _position(status("/runs/x", story(*LIVE), None, 5.0)) == "no step reported so far"


def test_the_last_recovery_says_what_its_time_is_measured_from() -> None:
    recovery = {"noticing": 0.0, "deciding": 2.0, "meeting": 0.0, "restoring": 0.0, "starting": 4.0}
    first = {"number": 1, "recovery": None, "stretches": [{"first_step_at": None}]}
    following = {"number": 2, "recovery": {**recovery, "seconds": 6.0}, "stretches": []}
    (line,) = _last_recovery({"attempts": [first, following]})
    assert line == "last recovery: first step 6 s after attempt 1 ended: decided in 2 s, started in 4 s"
    stepped = {**first, "stretches": [{"last_step_at": 9.0}]}
    (line,) = _last_recovery({"attempts": [stepped, following]})
    assert line.startswith("last recovery: first step 6 s after the last step: ")
    assert _last_recovery({"attempts": [first]}) == []
    stayed = {**following, "stretches": [{"world_size": 2, "stayed": 1}, {"world_size": 3, "stayed": 2}]}
    (line,) = _last_recovery({"attempts": [first, stayed]})
    assert line.endswith("started in 4 s; 1 of 2 ranks stayed in its process")


def test_a_speed_that_is_not_known_yet_is_left_blank() -> None:
    rank = {"rank": 0, "worker": "node-0", "step": 0, "step_seconds": 0.0}
    console = Console(record=True, width=120, file=StringIO())
    _ranks(console, {"ranks": [rank, {**rank, "rank": 1, "step_seconds": 0.25}], "at": 1.0})
    _, young, known = console.export_text().splitlines()
    assert young.split() == ["0", "node-0", "0", "0", "B", "not", "yet"]
    assert known.split()[3] == "0.250"
