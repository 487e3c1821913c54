"""The list of runs: one row for each, from its status document alone; sorted, filtered and counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from airflow_elastic.core.overview.health import health
from airflow_elastic.core.overview.pace import recent_paces
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.status import Waiting
from airflow_elastic.views.overview import progress

#: The keys by which the list can be sorted; with `-` before, the other way round.
SORTS = ("updated", "created", "state", "step", "world_size", "goodput", "eta", "restarts", "name")

_WAITING = frozenset(map(str, Waiting))


def row(path: str, uri: str, document: Mapping[str, Any], now: float, **more: Any) -> dict[str, Any]:
    """A run as the list shows it.

    Args:
        path: by which the routes know the run.
        uri: where it is stored.
        document: its status document, as a controller last wrote it.
        now: epoch seconds.
        more: further fields, such as the ids of its task instance.
    """
    well = health(document, now)
    done = progress(document, recent_paces(document))
    restarts = document.get("restarts") or {}
    return {
        "path": path,
        "name": (document.get("run") or {}).get("name") or uri.rstrip("/").rpartition("/")[2],
        **more,
        "uri": uri,
        "engine": (document.get("run") or {}).get("engine"),
        "state": document.get("state") or "unknown",
        "healthy": str(well.level),
        "headline": well.headline,
        "step": done["step"],
        "total_steps": done["total_steps"],
        "progress": done["fraction"],
        "eta_seconds": done["eta"] and done["eta"]["seconds"],
        "world_size": document.get("world_size"),
        "workers": document.get("workers"),
        "target_workers": document.get("target_workers"),
        "goodput": _share(document.get("goodput")),
        "restarts": {"used": restarts.get("used", 0), "limit": restarts.get("limit")},
        "created_at": document.get("created_at"),
        "ended_at": document.get("ended_at"),
        "updated_at": document.get("ended_at") or document.get("at"),
        "loss": document.get("loss"),
        "samples_per_second": (document.get("samples") or {}).get("per_second"),
        "saved_step": ((document.get("checkpoints") or {}).get("newest") or {}).get("step"),
        "checkpoint_at": ((document.get("checkpoints") or {}).get("newest") or {}).get("at"),
        "sparkline": [],
    }


def _share(goodput: Any) -> Any:
    """Earlier releases have written more than 1 where clocks of machines differ."""
    return min(goodput, 1.0) if isinstance(goodput, int | float) else None


def unreadable(path: str, uri: str, why: str, **more: Any) -> dict[str, Any]:
    """A run whose status cannot be read, so that an error of one run does not hide the others."""
    empty = row(path, uri, {"state": "unreadable", "at": None}, 0.0, **more)
    return {**empty, "healthy": "error", "headline": why}


def listed(
    rows: Iterable[Mapping[str, Any]],
    *,
    at: float,
    state: str = "",
    q: str = "",
    sort: str = "-updated",
    limit: int = 100,
    offset: int = 0,
) -> dict[str, Any]:
    """A page of the list. The totals are those of all runs, filtered or not.

    Args:
        rows: all runs.
        at: when they were read, epoch seconds.
        state: the states to show, with commas between them. Default: all.
        q: words that the name, the URI or an id must have, in any case. Default: all.
        sort: one of `SORTS`, with `-` before it for descending.
        limit: the most rows.
        offset: rows to leave out.

    Raises:
        InvalidInput: there is no such sort key.
    """
    every = list(rows)
    states = {one.strip() for one in state.split(",") if one.strip()}
    words = q.lower().split()
    found = [one for one in every if (not states or one["state"] in states) and _has(one, words)]
    ordered = _sorted(found, sort)
    return {
        "at": at,
        "total": len(found),
        "runs": ordered[offset : offset + limit],
        "totals": totals(every),
    }


def totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All runs together. `goodput` is that of the runs at work, each counted by its wall time so far."""
    training = [one for one in rows if one["state"] == "running"]
    weights = [
        (one["goodput"], max(0.0, one["updated_at"] - one["created_at"]))
        for one in training
        if one["goodput"] is not None and one["updated_at"] and one["created_at"]
    ]
    wall = sum(weight for _, weight in weights)
    return {
        "runs": len(rows),
        "training": len(training),
        "waiting": sum(one["state"] in _WAITING for one in rows),
        "failed": sum(one["state"] == "failed" for one in rows),
        "succeeded": sum(one["state"] == "succeeded" for one in rows),
        "workers": sum(one["workers"] or 0 for one in training),
        "goodput": sum(share * weight for share, weight in weights) / wall if wall else None,
    }


def _has(one: Mapping[str, Any], words: Sequence[str]) -> bool:
    if not words:
        return True
    text = " ".join(
        str(one.get(name) or "") for name in ("name", "uri", "dag_id", "run_id", "task_id")
    ).lower()
    return all(word in text for word in words)


def _sorted(rows: list[Mapping[str, Any]], sort: str) -> list[Mapping[str, Any]]:
    name, down = sort.removeprefix("-"), sort.startswith("-")
    if name not in SORTS:
        raise InvalidInput(f"sort: given {sort!r}; allowed: {' '.join(SORTS)}")
    key = _KEYS[name]
    known = [(value, one) for one in rows if (value := key(one)) is not None]
    unknown = [one for one in rows if key(one) is None]
    known.sort(key=lambda pair: pair[1]["path"])
    if name == "updated":  # runs at work all have news, and must not change places with each of them
        known = [(_last_news(one), one) for _, one in known]
    known.sort(key=lambda pair: pair[0], reverse=down)
    return [one for _, one in known] + unknown


def _last_news(one: Mapping[str, Any]) -> tuple[bool, float]:
    """Runs at work in the order of their beginnings; before them, those that ended."""
    going = one["ended_at"] is None and one["healthy"] != "error"
    return going, (one["created_at"] if going else one["updated_at"]) or 0.0


def _number(name: str) -> Callable[[Mapping[str, Any]], Any]:
    def of(one: Mapping[str, Any]) -> Any:
        value = one.get(name)
        return None if value is None or (isinstance(value, float) and math.isnan(value)) else value

    return of


_KEYS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "updated": _number("updated_at"),
    "created": _number("created_at"),
    "state": lambda one: one["state"],
    "step": _number("step"),
    "world_size": _number("world_size"),
    "goodput": _number("goodput"),
    "eta": _number("eta_seconds"),
    "restarts": lambda one: one["restarts"]["used"],
    "name": lambda one: one["name"].lower(),
}
