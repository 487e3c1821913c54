"""`airflow-elastic list` and `top`: all runs below a URI in a terminal, the second one again and again."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli import console as say
from airflow_elastic.cli.find_run import json_option
from airflow_elastic.cli.help_text import Command
from airflow_elastic.cli.number_types import SECONDS
from airflow_elastic.core.event_sentences import workers
from airflow_elastic.views.all_runs.below import index_of
from airflow_elastic.views.all_runs.run_list import SORTS, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import RenderableType

_COLOURS = {"ok": "green", "warning": "bold yellow", "error": "bold red", "idle": "dim"}


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    state = click.option(
        "--state", metavar="STATES", default="", help="Only these, with commas between them."
    )
    sort = click.option(
        "--sort",
        metavar="KEY",
        default="-updated",
        help=f"{', '.join(SORTS)}; - before it for descending.  [default: -updated]",
    )
    return click.argument("root")(state(sort(function)))


@click.command("list", cls=Command)
@_options
@json_option
def list_runs(root: str, state: str, sort: str, as_json: bool) -> None:
    """List all runs of a folder or an S3 prefix, each with the reason for its state.

    Examples:
      airflow-elastic list /mnt/runs
      airflow-elastic list s3://bucket/runs --state failed,running --sort -goodput
      airflow-elastic list /mnt/runs --json | jq '.runs[] | select(.healthy != "ok") | .headline'
    """
    store = open_store(root)
    at, rows = index_of(store).rows()
    page = listed(rows, at=at, state=state, sort=sort, limit=len(rows))
    if as_json:
        say.print_json({"uri": store.uri, **page})
    else:
        say.console().print(_table(page))
        say.console().print(_totals(page["totals"]))


@click.command(cls=Command)
@_options
@click.option(
    "--every", type=SECONDS, default=2.0, metavar="S", help="Seconds between two looks.  [default: 2]"
)
def top(root: str, state: str, sort: str, every: float) -> None:
    """Watch all runs of a folder or an S3 prefix; q or Ctrl-C ends it.

    Where the output is no terminal, it prints the runs once.

    Examples:
      airflow-elastic top /mnt/runs
      airflow-elastic top s3://bucket/runs --state running --sort -step
    """
    store, console = open_store(root), say.console()
    index = index_of(store)

    def shown() -> RenderableType:
        at, rows = index.rows()
        page = listed(rows, at=at, state=state, sort=sort, limit=max(5, console.height - 4))
        more = page["total"] - len(page["runs"])
        rest = [Text(f"and {more} more", style="dim")] if more else []
        return Group(_totals(page["totals"], at=at), _table(page), *rest)

    first = shown()
    if not (console.is_terminal and sys.stdin.isatty()):
        console.print(first)
        return
    with contextlib.suppress(KeyboardInterrupt), _keys(), Live(first, console=console, screen=True) as live:
        while not _quit_within(every):
            live.update(shown(), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Read single keys from the terminal, which does not show them."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _quit_within(seconds: float) -> bool:
    """Whether somebody presses q, or closes the terminal, within this time."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0] and sys.stdin.read(1) in ("q", "Q", ""):
            return True
    return False


def _table(page: Mapping[str, Any]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name, justify in (("run", "left"), ("state", "left"), ("step", "right"), ("left", "right")):
        table.add_column(name, justify=justify, no_wrap=name != "run")  # type: ignore[arg-type]
    for name in ("workers", "goodput", "restarts"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why", ratio=1)
    for run in page["runs"]:
        table.add_row(
            say.plain(run["key"] or run["name"]),
            Text(run["state"], style=_COLOURS.get(run["healthy"], "")),
            say.step_of(run) if run["step"] else "–",
            "–" if run["eta_seconds"] is None else say.duration(run["eta_seconds"]),
            _workers(run),
            "–" if run["goodput"] is None else f"{100 * run['goodput']:.0f} %",
            f"{run['restarts']['used']}",
            say.plain(run["headline"]),
        )
    return table


def _workers(run: Mapping[str, Any]) -> str:
    there, wanted = run["workers"], run["target_workers"]
    if there is None:
        return "–"
    return f"{there}" if wanted in (None, there) or run["ended_at"] else f"{there} → {wanted}"


def _totals(totals: Mapping[str, Any], *, at: float | None = None) -> Text:
    words = [f"{totals['runs']} run{'' if totals['runs'] == 1 else 's'}"]
    words.append(f"{totals['training']} training with {workers(totals['workers'])}")
    words += [f"{totals[name]} {name}" for name in ("waiting", "failed", "succeeded") if totals[name]]
    if totals["goodput"] is not None:
        words.append(f"goodput {100 * totals['goodput']:.0f} %")
    when = "" if at is None else f"  {say.moment(at, day=False)}"
    return Text(", ".join(words) + when, style="bold")
