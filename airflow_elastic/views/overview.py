"""The overview of one run: how it is, how it came there, and what it would lose now."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from airflow_elastic.core.goodput import ROWS
from airflow_elastic.core.health.recovery import PARTS
from airflow_elastic.core.overview.eta import eta
from airflow_elastic.core.overview.failing_line import with_line
from airflow_elastic.core.overview.health import health
from airflow_elastic.core.overview.marks import thinned
from airflow_elastic.core.overview.pace import recent_paces
from airflow_elastic.core.overview.risk import at_risk, reached
from airflow_elastic.core.overview.slow_ranks import slow_ranks
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.models.start import Origin
from airflow_elastic.spec.training.early_stop import EarlyStop
from airflow_elastic.views import history
from airflow_elastic.views.cache import Reader, Snapshot

T = TypeVar("T")

#: Rows of the account of time whose names are not everyday words.
_LABELS = {"untold": "Steps not reported"}

#: Kinds of events that a chart does not show.
_UNMARKED = ("run",)


def overview(
    snapshot: Snapshot, paces: Sequence[float] = (), conditions: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The document of the overview, without what depends on the person who asks.

    Args:
        snapshot: of the run.
        paces: recent seconds per step, of its history. Default: those of the status document.
        conditions: what lasted for a while, of its history.
    """
    status = snapshot.document
    well = health(status, snapshot.at, written_at=snapshot.written_at)
    known = list(paces) or recent_paces(status)
    newest = status["checkpoints"]["newest"]
    origin = status.get("origin")
    pace = statistics.median(known) if known else None
    return {
        "at": snapshot.at,
        "status": status,
        "healthy": str(well.level),
        "headline": well.headline,
        "progress": progress(status, known),
        "goodput": _goodput(status),
        "checkpoint": {
            "newest": newest
            and {"step": newest["step"], "at": newest["at"], "age_seconds": snapshot.at - newest["at"]},
            "at_risk": at_risk(status, pace),
        },
        "slow": slow_ranks(status),
        "started_from": origin and decode(Origin, origin).words,
        "early_stop": early_stop(snapshot),
        "attempts": [_attempt(attempt) for attempt in status["attempts"]],
        "marks": _marks(snapshot.events),
        "conditions": list(conditions),
    }


def shown(reader: Reader, snapshot: Snapshot, form: Callable[[dict[str, Any]], T]) -> T:
    """The overview with what the history adds. All who ask for it at the same moment get the same.

    Args:
        reader: of the run.
        snapshot: of the run, as it has just been read.
        form: makes of the document what is kept and returned.
    """

    def made() -> T:
        paces, conditions = history.of_overview(reader, stale=history.STALE)
        return form(overview(snapshot, paces, conditions))

    return reader.kept_of(snapshot, "overview", made)


def progress(status: Mapping[str, Any], paces: Sequence[float]) -> dict[str, Any]:
    """How far the training is, and when it ends: `eta` is None where that is not known, or the run has ended."""
    step, total = reached(status), status.get("total_steps")
    going = not status.get("outcome")
    when = eta(total - step, paces) if going and total else None
    pace = statistics.median(paces) if paces else None
    return {
        "fraction": min(1.0, step / total) if total else None,
        "step": step,
        "total_steps": total,
        "steps_per_second": 1.0 / pace if pace and going else None,
        "eta": None if when is None else {"seconds": when.seconds, "low": when.low, "high": when.high},
    }


def early_stop(snapshot: Snapshot) -> dict[str, Any] | None:
    """How near the run is to its early stop; None without one. Before the first report, `best` and `step` are None."""
    text = snapshot.state.spec.early_stop
    if text is None:
        return None
    rule = EarlyStop.parse(text)
    watch = snapshot.document.get("early_stop") or {}
    told = {name: watch.get(name) for name in ("best", "step")}
    return {"metric": rule.metric, "patience": rule.patience, "since": watch.get("since", 0), **told}


def _goodput(status: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of the waterfall: their seconds sum to the wall time."""
    rows = [
        {
            "name": name,
            "label": _LABELS.get(name, name.capitalize()),
            "meaning": meaning,
            "seconds": status["seconds"][name],
        }
        for name, meaning in ROWS.items()
    ]
    return {"share": status["goodput"], "wall": status["seconds"]["wall"], "rows": rows}


def _attempt(attempt: Mapping[str, Any]) -> dict[str, Any]:
    failure = attempt["failure"]
    return {
        "number": attempt["number"],
        "from": attempt["submitted_at"] or attempt["planned_at"],
        "until": attempt["ended_at"],
        "cause": attempt["cause"],
        "workers": attempt["workers"],
        "from_step": attempt["from_step"],
        "last_step": attempt["last_step"],
        "headline": _reason(failure) if failure else attempt["cause"] or attempt["phase"],
        "recovery": _recovery(attempt.get("recovery")),
        "generations": [
            {"from": part["started_at"], "workers": part["workers"], "world_size": part["world_size"]}
            for part in attempt["stretches"]
        ],
    }


def _recovery(parts: Mapping[str, float] | None) -> dict[str, Any] | None:
    """What took how long before the first step, in the order in which it happened."""
    if parts is None:
        return None
    rows = [{"name": name, "words": words, "seconds": parts[name]} for name, words in PARTS.items()]
    return {"seconds": parts["seconds"], "parts": rows}


def _reason(failure: Mapping[str, Any]) -> str:
    return with_line(failure["reason"], failure.get("error"), failure.get("traceback"))


def _marks(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    marks = [
        {name: event[name] for name in ("at", "kind", "level", "text")}
        for event in events
        if event["kind"] not in _UNMARKED
    ]
    return thinned(marks)
