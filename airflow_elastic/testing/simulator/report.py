"""Figures as a table for people, and as plain JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from airflow_elastic.testing.simulator.compare import Comparison
from airflow_elastic.testing.simulator.metrics import Figures
from airflow_elastic.testing.simulator.oracle import Bounds


def table(done: Comparison) -> Table:
    """One line for each policy, and one for the bounds; times in hours, GPU time in GPU hours."""
    shown = Table(box=None, header_style="dim", pad_edge=False)
    shown.add_column("policy", no_wrap=True)
    names = ("makespan", "waits", "takes", "lost", "idle*", "diluted", "overhead")
    for name in (*names, "goodput", "fair", "worst", "steps", "restarts", "ended"):
        shown.add_column(name, justify="right", no_wrap=True)
    for one in done.figures:
        shown.add_row(one.policy, *_cells(one))
    shown.add_row("no schedule beats", *_bound_cells(done.bounds), style="dim")
    return shown


#: What the columns mean.
LEGEND = (
    "Times are in hours; waits and takes are means. GPU time is in GPU hours. The figure lost is the sum of the next "
    "three. GPUs of idle* were free while work could use them. The goodput is the needed share of the GPU time that "
    "work could use. The index fair is Jain's. The figure worst is the 99th percentile of finish-time fairness."
)


def _cells(one: Figures) -> list[str]:
    return [
        _hours(one.makespan),
        _hours(one.waiting),
        _hours(one.duration),
        _hours(one.lost),
        _hours(one.idle_while_wanted),
        _hours(one.diluted),
        _hours(one.overhead),
        f"{one.goodput:.1%}",
        f"{one.jain:.2f}",
        f"{one.rho_worst:.1f}",
        str(one.scale_steps),
        str(one.restarts),
        f"{one.succeeded}/{one.runs}",
    ]


def _bound_cells(least: Bounds) -> list[str]:
    known = [_hours(least.makespan), _hours(least.waiting), _hours(least.duration), _hours(least.lost)]
    return [*known, "0", "0", _hours(least.lost), *["–"] * 6]


def _hours(seconds: float) -> str:
    hours = round(seconds / 3600.0, 3) or 0.0  # no -0.00
    return (
        f"{hours:,.0f}".replace(",", " ")
        if hours >= 100
        else f"{hours:.2f}"
        if hours < 10
        else f"{hours:.1f}"
    )


def document(done: Comparison, seed: int | None) -> dict[str, Any]:
    """Plain values: seconds, and GPU seconds. The bounds stand beside the figures of each policy."""
    trace = done.trace
    return {
        "trace": trace.name,
        "seed": seed,
        "jobs": len(trace.jobs),
        "nodes": trace.nodes,
        "gpus_per_node": trace.gpus,
        "outages": len(trace.outages),
        "left_out": trace.left_out,
        "bounds": asdict(done.bounds),
        "policies": [
            asdict(one)
            | {"overhead": one.overhead, "wasted": one.wasted, "lost": one.lost, "goodput": one.goodput}
            | {"took_seconds": took}
            for one, took in zip(done.figures, done.took, strict=True)
        ],
    }
