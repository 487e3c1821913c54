"""Regions of journal.md and status.md: events, and a document that holds everything one can hold."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import Any

from airflow_elastic.core.goodput import ROWS
from airflow_elastic.core.machine import replay
from airflow_elastic.core.status_document import document
from airflow_elastic.core.status_fields import ATTEMPT, DOCUMENT, RANK, Field
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.status import (
    JobStatus,
    Progress,
    RankError,
    RankReport,
    Stretch,
    WorkerPhase,
    WorkerStatus,
)
from generator.markdown import code, docstring, fence, plain, table


def journal_events() -> str:
    rows = []
    for kind in typing.get_args(ev.Event):
        words = plain(docstring(kind.__doc__ or "")[0])
        fields = [
            f"`{field.name}`" + ("" if _required(field) else "?")
            for field in dataclasses.fields(kind)
            if field.name != "at"
        ]
        rows.append((code(kind.__name__), ", ".join(fields), words))
    return table(("event", "fields", "what happened"), rows)


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def example_document() -> dict[str, Any]:
    """The status document of a run that lost a worker, scaled and goes on: with everything that a document can hold."""
    t = 1_790_000_000.0
    first = Stretch(1, 2, 2, t + 2, t + 5, t + 60, 0, 550, 52.0, 1.5, 0.0)
    second = Stretch(1, 2, 2, t + 65, t + 68, t + 90, 500, 700, 20.0, 0.5, 0.25)
    rank = RankReport(0, "node-0", 700, t + 90, 0.1, 0.41, 812_646_400)
    died = RankError(1, 1, at=t + 60, error="ValueError: bad sample", traceback="Traceback …")
    story = (
        ev.RunCreated(
            t,
            RunSpec(("train.py",), name="digits", workers=Workers(2, min=1, max=4)),
            scales_in_place=True,
            owner="ada@laptop (process 4711)",
        ),
        ev.AttemptSubmitted(t + 1, 1, "digits-0f3b9c2d41-a1"),
        ev.CheckpointCommitted(t + 55, 1, 500, "checkpoints/manifests/000000000500.json"),
        ev.WorkersEnded(
            t + 61,
            1,
            JobStatus((WorkerStatus("node-1", WorkerPhase.FAILED, errors=(died,)),)),
            Progress(1, t + 60, 550, t + 60, 3000, stretches=(first,), attached=True),
        ),
        ev.AttemptGone(t + 62, 1),
        ev.AttemptSubmitted(t + 63, 2, "digits-0f3b9c2d41-a2"),
        ev.SaveFailed(t + 80, 2, 600, "node-1", "/mnt/runs/digits: cannot write: No space left on device"),
        ev.PruneRefused(
            t + 85,
            2,
            650,
            "node-0",
            "/mnt/runs/digits: nothing was removed, as what would stay (650) is damaged",
        ),
        ev.CopyRefused(
            t + 86,
            2,
            500,
            "node-1",
            "model.0.weight in the memory of this worker's agent is not what was committed: its bytes have changed. It "
            "was read from storage instead",
        ),
    )
    progress = Progress(
        2,
        t + 91,
        700,
        t + 90,
        3000,
        2,
        44_800,
        640.0,
        0.41,
        {"lr": 0.01},
        2,
        (second,),
        (rank,),
        attached=True,
    )
    return document("/mnt/runs/digits", replay(story), progress, t + 91)  # type: ignore[arg-type]


def status_example() -> str:
    return fence(json.dumps(example_document(), indent=1, ensure_ascii=False), "json")


def status_fields() -> str:
    return _fields(DOCUMENT)


def status_attempt() -> str:
    return _fields(ATTEMPT)


def status_rank() -> str:
    return _fields(RANK)


def _fields(fields: Mapping[str, Field]) -> str:
    rows = ((", ".join(map(code, names.split(", "))), *field) for names, field in fields.items())
    return table(("field", "type", "meaning"), rows)


def status_seconds() -> str:
    wall = (
        "from the run's creation to its end, or to now, without the time from an end until it was reopened: "
        "the sum of the others"
    )
    rows = [("`wall`", wall)]
    return table(("row", "meaning"), (*rows, *((code(name), text) for name, text in ROWS.items())))
