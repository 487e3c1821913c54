"""The account at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from airflow_elastic.cli import console as say
from airflow_elastic.core.goodput import ROWS

if TYPE_CHECKING:
    from rich.console import Console

    from demo.verify import Check, Evidence


def show(console: Console, seen: Evidence) -> None:
    """What became of the training, and of its model."""
    if seen.status is not None:
        console.print(_attempts(seen.status))
        console.print()
        console.print(_result(seen, seen.status))
        console.print()
        console.print(_time(seen.status))
        console.print()


def show_checks(console: Console, found: Iterable[Check]) -> None:
    """Every check, with what was found."""
    for check in found:
        sign, style = ("✓", "green") if check.ok else ("✗", "bold red")
        console.print(
            Text.assemble((f"{sign} ", style), (check.text, "" if check.ok else style)), soft_wrap=True
        )


def _attempts(status: Mapping[str, Any]) -> Table:
    table = _table("attempt", "world size", "steps", "took", "ended because")
    for attempt in status["attempts"]:
        sizes = [str(stretch["world_size"]) for stretch in attempt["stretches"]]
        end = attempt["ended_at"] or status["ended_at"] or status["at"]
        failure = attempt["failure"]
        cause = "training is complete" if attempt["cause"] == "succeeded" else attempt["cause"]
        table.add_row(
            str(attempt["number"]),
            ", then ".join(sizes) or "none",
            f"{attempt['from_step']} → {attempt['last_step']}",
            say.duration(max(0.0, end - (attempt["submitted_at"] or end))),
            f"{failure['kind']}: {failure['reason']}" if failure else cause or status["state"],
        )
    return table


def _result(seen: Evidence, status: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    samples = f"{status['samples']['seen']} seen, {seen.expected_samples} expected"
    table.add_row("samples", f"{samples}; each counts once, whatever happened")
    if seen.evaluation is not None:
        table.add_row(
            "evaluation",
            f"accuracy {seen.evaluation['metrics']['accuracy']:.4f} on held-out digits",
        )
    if (made := seen.promotion) is not None:
        before = f", after {made['replaces']}" if made.get("replaces") else ", the first one"
        table.add_row("promoted", f"model {made['number']}{before}: {made['file']}")
    table.add_row("goodput", f"{100 * status['goodput']:.0f} % of {say.duration(status['seconds']['wall'])}")
    return table


def _time(status: Mapping[str, Any]) -> Table:
    seconds = status["seconds"]
    table = _table("where the time went", "", "", "")
    for name, meaning in ROWS.items():
        if seconds[name] >= 0.05:
            share = 100 * seconds[name] / seconds["wall"]
            table.add_row(name, say.duration(seconds[name]), f"{share:.0f} %", meaning)
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=name not in {"", "ended because"})
    return table
