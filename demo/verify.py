"""Whether all that the demo promises has really happened: this decides its exit code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.faults import VICTIM, WORKERS_WANTED
from demo.page import Shown

#: Below this the network has learned nothing worth showing: a guess is right in one case of ten.
LEAST_ACCURACY = 0.9


@dataclass(frozen=True, slots=True)
class Evidence:
    """Facts about a DAG run that has ended. Only `killed` and `scale_code` come from the demo itself.

    Attributes:
        status: the training's status document; None where there never was a training.
        tasks: the state of each task of the DAG run.
        tries: tries that Airflow made of the task `train`.
        log: the log of that task, as Airflow shows it.
        page: what the charts of its page show.
        killed: process id that the demo has killed.
        scale_code: exit code of `airflow-elastic scale`.
        expected_samples: epochs times samples of the data set.
        evaluation: what the task `evaluate` returned.
        promotion: record of the promotion, with the `file` of its weights.
        asset_events: of this DAG run, from Airflow.
        training_left: processes of the training that live although it has ended.
        airflow_left: processes that live although Airflow was stopped; None if it was left running.
    """

    status: Mapping[str, Any] | None
    tasks: Mapping[str, str | None]
    tries: int
    log: str
    page: Shown
    killed: int | None
    scale_code: int | None
    expected_samples: int | None
    evaluation: Mapping[str, Any] | None
    promotion: Mapping[str, Any] | None
    asset_events: Sequence[Mapping[str, Any]]
    training_left: Sequence[int]
    airflow_left: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that has to be so, and what was found."""

    ok: bool
    text: str


def checks(evidence: Evidence) -> list[Check]:
    """All of them; a demo has done what it promises when every one is ok."""
    return [
        *_of_airflow(evidence),
        *_of_page(evidence.page),
        *_of_training(evidence),
        *_of_model(evidence),
        *_of_the_end(evidence),
    ]


def _of_airflow(seen: Evidence) -> Iterator[Check]:
    states = ", ".join(f"{name} {state or 'never began'}" for name, state in seen.tasks.items())
    yield Check(bool(seen.tasks) and set(seen.tasks.values()) == {"success"}, f"tasks: {states}")
    yield Check(
        seen.tries == 1,
        f"Airflow needed {_count(seen.tries, 'try', 'tries')} of train: a restart is none of its retries",
    )
    events, rank = "attempt 2 begins in place" in seen.log, "[rank 0] epoch " in seen.log
    yield Check(
        events and rank,
        "the log of train has "
        f"{'the events' if events else 'no event of a second attempt'}, and {'' if rank else 'not '}rank 0's lines",
    )


def _of_page(page: Shown) -> Iterator[Check]:
    """The charts show what has happened: the lost worker, the new attempt, the scale step."""
    by = "Chromium" if page.by == "Chromium" else "there is no Chromium, so only its data were looked at"
    yield Check(
        page.trouble is None,
        f"the tab Training was opened ({by})"
        if page.trouble is None
        else f"the tab Training cannot be seen: {page.trouble}",
    )
    lost = next((mark for mark in page.marks if "was lost" in mark), None)
    yield Check(lost is not None, f"its charts {'mark' if lost else 'do not mark'} that a worker was lost")
    scaled = any(f"{WORKERS_WANTED} workers" in mark for mark in page.marks)
    yield Check(scaled, f"its charts {'mark' if scaled else 'do not mark'} the scale step")
    yield Check(
        len(page.attempts) > 1, f"its charts show {_count(len(page.attempts), 'attempt', 'attempts')}"
    )
    grown = page.sizes is not None and page.sizes[0] < page.sizes[1] == WORKERS_WANTED
    sizes = "no world size" if page.sizes is None else f"world sizes from {page.sizes[0]} to {page.sizes[1]}"
    yield Check(grown, f"its charts show {sizes}")


def _of_training(seen: Evidence) -> Iterator[Check]:
    if seen.status is None:
        yield Check(False, "there was no training")
        return
    yield Check(seen.killed is not None, f"worker {VICTIM} was killed from outside (process {seen.killed})")
    first, *others = seen.status["attempts"]
    failure = first["failure"] or {}
    yield Check(
        failure.get("kind") == "worker lost" and f"process {seen.killed}" in str(failure.get("reason")),
        f"attempt 1 ended because of that: {failure.get('reason', first['cause'])}",
    )
    start = others[0]["from_step"] if others else 0
    again = first["last_step"] - start if others else 0
    yield Check(
        start > 0,
        f"attempt 2 began at the checkpoint of step {start}; {again} steps were done again"
        if others
        else "there was no second attempt",
    )
    yield Check(seen.scale_code == 0, f"`airflow-elastic scale` ended with {seen.scale_code}")
    wide = sum(
        stretch["to_step"] - stretch["from_step"]
        for attempt in seen.status["attempts"]
        for stretch in attempt["stretches"]
        if stretch["world_size"] == WORKERS_WANTED
    )
    yield Check(wide > 0, f"{wide} steps were done with world size {WORKERS_WANTED}")
    samples = seen.status["samples"]["seen"]
    yield Check(
        samples == seen.expected_samples and samples > 0,
        f"samples: {samples} seen, {seen.expected_samples} expected",
    )


def _of_model(seen: Evidence) -> Iterator[Check]:
    accuracy = seen.evaluation["metrics"]["accuracy"] if seen.evaluation else 0.0
    yield Check(
        accuracy >= LEAST_ACCURACY, f"accuracy {accuracy:.4f} on held-out data, at least {LEAST_ACCURACY}"
    )
    made, step = seen.promotion, seen.status["step"] if seen.status else None
    yield Check(
        made is not None and made["step"] == step and _whole(made),
        f"model {made['number']} is promoted: checkpoint {made['step']}, its file is whole"
        if made is not None and _whole(made)
        else "no model is promoted, or its file is not what was measured",
    )
    numbers = [event["extra"].get("number") for event in seen.asset_events]
    yield Check(
        made is not None and made["number"] in numbers,
        f"Airflow has {_count(len(numbers), 'event', 'events')} of the asset digits_model from this DAG run",
    )


def _whole(promotion: Mapping[str, Any]) -> bool:
    path = Path(promotion["file"])
    whole = promotion["weights"]["sha256"]
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == whole


def _of_the_end(seen: Evidence) -> Iterator[Check]:
    yield Check(not seen.training_left, _left("the training", seen.training_left))
    if seen.airflow_left is not None:
        yield Check(not seen.airflow_left, _left("Airflow", seen.airflow_left))


def _left(of: str, pids: Sequence[int]) -> str:
    return (
        f"of {of} these processes still live: {', '.join(map(str, pids))}"
        if pids
        else f"nothing of {of} is left"
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
