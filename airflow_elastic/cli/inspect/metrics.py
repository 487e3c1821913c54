"""`airflow-elastic metrics`: the history of a run's numbers."""

from __future__ import annotations

import csv
import re
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click
from rich.table import Table

from airflow_elastic.adapters.records.history import read_history
from airflow_elastic.cli import console as say
from airflow_elastic.cli.find_run import find_run, uri_argument
from airflow_elastic.cli.help_text import Command
from airflow_elastic.cli.inspect.line_charts import chart, sparkline
from airflow_elastic.cli.number_types import COUNT
from airflow_elastic.core.history import newest, select
from airflow_elastic.core.units import NON_FINITE
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.history import History

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

#: Characters of a chart in a table, and of one by itself: width, height.
_SMALL, _LARGE = 40, (100, 12)

#: Characters of a chart in a table on a narrow terminal.
_LEAST = 9


@click.command(cls=Command)
@uri_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print a line for each time and series, as CSV.")
@click.option(
    "--name", "names", multiple=True, metavar="GLOB", help="Only these series: metrics.*; repeatable."
)
@click.option(
    "--since", metavar="TIME", help="From then on: 30m, 2h, 1d ago, or 2026-01-31T12:00. Default: all."
)
@click.option("--points", type=COUNT, default=500, show_default=True, help="The most points.")
def metrics(
    uri: str, as_json: bool, as_csv: bool, names: tuple[str, ...], since: str | None, points: int
) -> None:
    """Show the history of a run's numbers.

    It prints a line for each series: its newest value, its least, its greatest and a small chart. If --name leaves one
    series, its chart is larger. The history is kept with the run, also when it has ended.

    Examples:
      airflow-elastic metrics /mnt/runs/mnist
      airflow-elastic metrics /mnt/runs/mnist --name loss --since 2h
      airflow-elastic metrics s3://bucket/runs/mnist --name 'metrics.*' --csv > metrics.csv
    """
    if as_json and as_csv:
        raise InvalidInput("--json and --csv exclude each other: give one of them")
    history = read_history(find_run(uri).store)
    begin = None if since is None else _moment(since, history.at)
    chosen = select(history, names or None, begin, None, points)
    if names and not chosen["series"]:
        there = ", ".join(chosen["names"]) or "none yet"
        raise InvalidInput(f"no series matches {', '.join(names)}; there are: {there}")
    if as_json:
        say.print_json(chosen)
    elif as_csv:
        _csv(chosen)
    else:
        _show(history, chosen)


def _csv(chosen: Mapping[str, Any]) -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("time", "series", "mean", "min", "max"))
    for name, series in chosen["series"].items():
        rows = zip(series["t"], series["mean"], series["min"], series["max"], strict=True)
        out.writerows((t, name, mean, low, high) for t, mean, low, high in rows if mean is not None)


def _row(
    name: str, series: Mapping[str, Any], last: tuple[float, float], now: float
) -> tuple[str, str, str, str, str]:
    """A line of the table without its chart. `last`: time and value of the newest number."""
    low, high = _numbers(series["min"]), _numbers(series["max"])
    at, value = last
    return (
        name,
        say.number(value),
        f"{say.duration(max(0.0, now - at))} ago",
        say.number(min((v for v in low if v is not None), default=value)),
        say.number(max((v for v in high if v is not None), default=value)),
    )


def _show(history: History, chosen: Mapping[str, Any]) -> None:
    console = say.console()
    if not chosen["series"]:
        console.print("there is no history yet: it begins with the first step")
        return
    plain, last = _is_plain(console.encoding), newest(history)
    heads = ("series", "newest", "at", "least", "greatest", "over time")
    rows = [_row(name, series, last[name], history.at) for name, series in chosen["series"].items()]
    taken = [max(map(len, column)) for column in zip(heads[:-1], *rows, strict=True)]
    room = max(_LEAST, min(_SMALL, console.width - sum(taken) - 2 * len(taken)))
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name, least in zip(heads, [*taken, room], strict=True):
        justify: Any = "left" if name in ("series", "over time") else "right"
        table.add_column(name, justify=justify, no_wrap=True, min_width=least)
    for row, series in zip(rows, chosen["series"].values(), strict=True):
        table.add_row(*row, sparkline(_numbers(series["mean"]), room, ascii_only=plain))
    if len(chosen["series"]) == 1:
        (series,) = chosen["series"].values()
        width = min(_LARGE[0], console.width)
        for line in chart(_numbers(series["mean"]), width, _LARGE[1], ascii_only=plain):
            console.print(line, soft_wrap=True)
        console.print(f"{say.moment(chosen['from'])} to {say.moment(chosen['until'])}", style="dim")
    console.print(table, crop=False)


def _numbers(values: list[float | str | None]) -> list[float | None]:
    return [NON_FINITE[value] if isinstance(value, str) else value for value in values]


def _is_plain(encoding: str) -> bool:
    try:
        "▁█".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def _moment(text: str, now: float) -> float:
    """A moment in epoch seconds: so long ago, or a date and time in this machine's time zone."""
    ago = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text.strip())
    if ago is not None:
        return now - float(ago[1]) * _UNITS[ago[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        example = time.strftime("%Y-%m-%dT%H:%M", time.localtime(now))
        raise InvalidInput(
            f"--since got {text!r}; give a time ago such as 30m, 2h or 1d, or a moment such as {example}"
        ) from None
