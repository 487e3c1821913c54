"""Of Airflow's REST API: the paths that are asked, and what it answers as text for a person."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote

import httpx

_LOG_KEYS = frozenset(
    {"timestamp", "level", "event", "logger", "filename", "lineno", "error_detail"}
    | {"ti", "ti_id", "dag_id", "run_id", "task_id", "map_index", "try_number"}
)


def run_path(dag_id: str, run_id: str) -> str:
    """Of a run, below `/api/v2/`."""
    return f"dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def task_path(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    """Of a task instance."""
    mapped = f"/{map_index}" if map_index >= 0 else ""
    return f"{run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}{mapped}"


def words(states: Collection[str]) -> str:
    """States to choose from, in an error's text."""
    return " or ".join(sorted(states))


def tail(text: str, lines: int = 25) -> str:
    """The last lines of a text."""
    return "\n".join(text.splitlines()[-lines:])


def reason(answer: httpx.Response) -> str:
    """What an error answer says, short."""
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = answer.text[:300] or answer.reason_phrase
    return f"{answer.status_code} {detail}"


def log_line(record: Any) -> str:
    """One structured log record as a line of text, without what says again which task it is of."""
    if not isinstance(record, Mapping):
        return str(record)
    shown = {key: value for key, value in record.items() if key not in _LOG_KEYS and value is not None}
    words = [record.get("timestamp"), str(record.get("level") or "").upper(), record.get("event")]
    line = " ".join(str(word) for word in words if word)
    line += "".join(f" {key}={value}" for key, value in shown.items())
    for error in record.get("error_detail") or ():
        line += f"\n    {error.get('exc_type')}: {error.get('exc_value')}"
        for frame in error.get("frames") or ():
            line += f"\n      {frame.get('filename')}:{frame.get('lineno')} in {frame.get('name')}"
    return line
