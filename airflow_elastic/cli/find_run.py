"""Find a run, and find out whether a controller drives it."""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING

import click

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli import console
from airflow_elastic.control.runs import Run, open_run
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.core.state import RunState

#: Longest time in seconds without a write of the controller. It writes at least every 5 s, unless the storage fails.
SILENCE_SECONDS = 15.0


def uri_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """The argument URI of a command, as the parameter `uri`."""
    return click.argument("uri")(function)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option --json of a command, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def find_run(uri: str) -> Run:
    """The run at a URI. Raises RunMissing if there is none."""
    return open_run(open_store(uri))


def silent_since(store: Store) -> float | None:
    """When a controller last wrote the status document, in epoch seconds. None before the first write."""
    data = store.get(layout.STATUS)
    try:
        return None if data is None else float(json.loads(data)["at"])
    except (ValueError, KeyError, TypeError):
        return None


def controller_silence(store: Store, state: RunState) -> float | None:
    """Seconds since a controller has last written for a run that goes on. None if that is less than the limit."""
    if state.ended:
        return None
    silent = time.time() - (silent_since(store) or state.created_at)
    return silent if silent > SILENCE_SECONDS else None


def controller_hint(store: Store, state: RunState) -> str | None:
    """Advice for a run that no controller seems to drive; None if one does."""
    silent = controller_silence(store, state)
    if silent is None:
        return None
    carry_on = f"`{console.carry_on(store.uri)}`"
    advice = f"carry it on with {carry_on}"
    if of_a_task(state.owner):
        advice = (
            "it belongs to a task of Airflow. Start a triggerer there with `airflow triggerer`, and it goes on by "
            f"itself; with deferrable=False, clear the task. {carry_on} takes it from the task, which then cannot "
            "stop it"
        )
    return (
        f"no controller has written for {console.duration(silent)}. Workers may train on, but nothing "
        f"is restarted, scaled or stopped; {advice}"
    )


def of_a_task(owner: str | None) -> bool:
    """Whether the owner is a task instance of Airflow (its id is a UUID) and not a shell (`ada@laptop (…)`)."""
    try:
        return owner is not None and bool(uuid.UUID(owner))
    except ValueError:
        return False


def last_write(store: Store) -> str:
    """When a controller last wrote, as a text."""
    at = silent_since(store)
    return (
        "none has written yet"
        if at is None
        else f"it last wrote {console.duration(max(0.0, time.time() - at))} ago"
    )
