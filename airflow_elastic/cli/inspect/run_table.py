"""List the runs of a folder, one a line."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from airflow_elastic.adapters.storage.list_runs import runs_below
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli import console
from airflow_elastic.control.runs import Run
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import ElasticError

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store


def summaries(store: Store) -> list[dict[str, Any]]:
    """A short summary of each run below a URI, the newest run first."""
    found = [_summary(open_store(f"{store.uri}/{key}")) for key in runs_below(store)]
    return sorted(found, key=lambda one: -(one["created_at"] or 0.0))


def _summary(store: Store) -> dict[str, Any]:
    try:
        document = _document(store)
    except ElasticError as error:  # an error of one run must not hide the others
        return {**_EMPTY, "uri": store.uri, "reason": str(error)}
    return {
        "uri": store.uri,
        "name": document["run"]["name"],
        "state": document["state"],
        "reason": document["reason"],
        "step": document["step"],
        "total_steps": document["total_steps"],
        "workers": document["workers"],
        "attempts": len(document["attempts"]),
        "created_at": document["created_at"],
        "ended_at": document["ended_at"],
        "at": document["at"],
    }


_EMPTY: dict[str, Any] = dict.fromkeys(
    ("name", "reason", "total_steps", "workers", "created_at", "ended_at", "at")
) | {"state": "unreadable", "step": 0, "attempts": 0}


def _document(store: Store) -> dict[str, Any]:
    """The status document that a controller last wrote, in one read; else the status from the journal."""
    try:
        document: dict[str, Any] = json.loads(store.get(layout.STATUS) or b"")
        _ = (
            document["run"]["name"],
            document["state"],
            document["attempts"],
            document["at"],
            document["reason"],
        )
    except (ValueError, KeyError, TypeError):
        return Run(store).status()
    return document


def table(store: Store, runs: list[dict[str, Any]], colours: dict[str, str]) -> Table:
    """The summaries as a table: path below the URI, state, step and age of each run."""
    now = time.time()
    shown = Table(box=None, header_style="dim", pad_edge=False)
    for name, justify in (("run", "left"), ("state", "left"), ("step", "right"), ("workers", "right")):
        shown.add_column(name, justify=justify, no_wrap=name != "run")  # type: ignore[arg-type]
    for name in ("attempts", "age", "took", "last word"):
        shown.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        began, ended = run["created_at"], run["ended_at"]
        shown.add_row(
            run["uri"].removeprefix(store.uri).lstrip("/"),
            Text(run["state"], style=colours.get(run["state"], "bold")),
            console.step_of(run) if run["step"] else "–",
            str(run["workers"] or "–"),
            str(run["attempts"]),
            f"{console.duration(max(0.0, now - began))} ago" if began else "–",
            console.duration(max(0.0, (ended or now) - began)) if began else "–",
            f"{console.duration(max(0.0, now - run['at']))} ago" if run["at"] else "–",
        )
    return shown
