"""`/metrics`: the runs at work in the text form of Prometheus, under the names that Airflow's own metrics have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

#: The content type of the form.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Gauge(NamedTuple):
    meaning: str
    value: Callable[[Mapping[str, Any], float], Any]


def _field(name: str) -> Callable[[Mapping[str, Any], float], Any]:
    return lambda row, now: row.get(name)


def _age(row: Mapping[str, Any], now: float) -> float | None:
    at = row.get("checkpoint_at")
    return None if at is None else max(0.0, now - at)


#: Of each run that has not ended.
GAUGES: Mapping[str, _Gauge] = {
    "step": _Gauge("newest step that is known", _field("step")),
    "progress": _Gauge("share of the steps, if the script says how many there are", _field("progress")),
    "eta_seconds": _Gauge("seconds until the last step at the recent pace", _field("eta_seconds")),
    "loss": _Gauge("newest loss of rank 0", _field("loss")),
    "samples_per_second": _Gauge("recent throughput of all ranks", _field("samples_per_second")),
    "world_size": _Gauge("ranks at work", _field("world_size")),
    "workers": _Gauge("workers of the current attempt", _field("workers")),
    "target_workers": _Gauge("workers wanted", _field("target_workers")),
    "goodput": _Gauge("share of the wall time in steps that count", _field("goodput")),
    "restarts": _Gauge("used restarts of the budget", lambda row, now: row["restarts"]["used"]),
    "checkpoint_age": _Gauge("seconds since the newest checkpoint was seen", _age),
    "healthy": _Gauge("1: nothing is wrong; 0: a warning or an error", lambda row, now: _well(row)),
}


def exposition(rows: Iterable[Mapping[str, Any]], now: float) -> str:
    """The metrics of all runs.

    Args:
        rows: of the list of runs.
        now: epoch seconds.
    """
    every = list(rows)
    return "".join(f"{line}\n" for line in (*_counts(every), *_gauges(every, now)))


def _counts(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    states: dict[str, int] = {}
    for row in rows:
        states[str(row["state"])] = states.get(str(row["state"]), 0) + 1
    yield "# HELP elastic_runs how many runs are in each state"
    yield "# TYPE elastic_runs gauge"
    for state, count in sorted(states.items()):
        yield f'elastic_runs{{state="{_escaped(state)}"}} {count}'


def _gauges(rows: list[Mapping[str, Any]], now: float) -> Iterator[str]:
    at_work = [row for row in rows if row["ended_at"] is None and row["state"] != "unreadable"]
    for name, gauge in GAUGES.items():
        values = [(row, value) for row in at_work if (value := _number(gauge.value(row, now))) is not None]
        if values:
            yield f"# HELP elastic_run_{name} {gauge.meaning}"
            yield f"# TYPE elastic_run_{name} gauge"
        for row, value in values:
            labels = f'run="{_escaped(str(row["name"]))}",uri="{_escaped(row["uri"])}"'
            yield f"elastic_run_{name}{{{labels}}} {value}"


def _number(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _well(row: Mapping[str, Any]) -> int:
    return int(row["healthy"] in ("ok", "idle"))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
