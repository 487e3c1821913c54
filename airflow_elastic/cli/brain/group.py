"""`airflow-elastic brain`: learn from runs, show what is known, and forget it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli import console as say
from airflow_elastic.cli.brain.open import opened
from airflow_elastic.cli.brain.propose import propose
from airflow_elastic.cli.brain.shares import shares
from airflow_elastic.cli.find_run import json_option
from airflow_elastic.cli.help_text import Command, keep_examples
from airflow_elastic.core.units import size
from airflow_elastic.spec.errors import InvalidInput

if TYPE_CHECKING:
    from airflow_elastic.core.brain.facts import Facts


class _Group(click.Group):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "help": keep_examples(options.get("help"))})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Group)
def brain() -> None:
    """Remember past runs: how fast, how large and how reliable they were.

    It is kept in a database. AIRFLOW_ELASTIC_BRAIN has its URL, of SQLite or PostgreSQL, e.g.
    postgresql://user:password@host/brain. By default it is a file in your home. It needs the extra `brain`.

    Example:
      airflow-elastic brain learn /mnt/runs
      airflow-elastic brain show
    """


@brain.command(cls=Command)
@click.argument("root")
@json_option
def learn(root: str, as_json: bool) -> None:
    """Read all runs below ROOT: a folder, an S3 prefix, or one run.

    Runs that go on are read as they are now. A run that has ended is read once; learn again as often as you like.

    Example:
      airflow-elastic brain learn s3://bucket/runs
    """
    with opened() as database:
        from airflow_elastic.brain.learn import learn as read_all

        found = read_all(database, root)
        name = database.name
    if as_json:
        say.print_json({"brain": name, **asdict(found)})
    else:
        console = say.console()
        for uri, why in found.skipped:
            console.print(f"left out: {uri}: {why}", style="yellow", soft_wrap=True)
        count = len(found.read)
        text = f"{count} run{'' if count == 1 else 's'} read, {found.unchanged} known already; kept in {name}"
        console.print(text, soft_wrap=True)
    if found.skipped and not found.read and not found.unchanged:
        raise click.exceptions.Exit(1)


@brain.command(cls=Command)
@click.argument("name", required=False)
@json_option
def show(name: str | None, as_json: bool) -> None:
    """Show what is known of runs; with NAME, of runs with that name.

    Of each run: its speed by number of workers, and what a worker used of its machine in 95 % of the time.

    Examples:
      airflow-elastic brain show
      airflow-elastic brain show mnist --json
    """
    with opened() as database:
        from airflow_elastic.brain.memory import known

        runs, where = known(database, name=name), database.name
        if name is not None and not runs:
            there = sorted({one.name for one in known(database)})
            raise InvalidInput(
                f"nothing is known of runs named {name!r}; known are: {', '.join(there) or 'none yet'}"
            )
    if as_json:
        say.print_json({"brain": where, "runs": [asdict(one) for one in runs]})
        return
    console = say.console()
    if not runs:
        console.print(f"nothing is known yet in {where}: `airflow-elastic brain learn ROOT`", soft_wrap=True)
        return
    console.print(_table(runs), crop=False)
    console.print(where, style="dim", soft_wrap=True)


brain.add_command(propose)
brain.add_command(shares)


@brain.command(cls=Command)
@click.argument("uri", required=False)
@click.option("--all", "everything", is_flag=True, help="Of all runs.")
@json_option
def forget(uri: str | None, everything: bool, as_json: bool) -> None:
    """Remove what is known of a run, or of all runs below a URI. The runs themselves stay.

    Example:
      airflow-elastic brain forget /mnt/runs/mnist
    """
    if (uri is None) != everything:
        raise InvalidInput("give either the URI of what to forget, or --all")
    with opened() as database:
        from airflow_elastic.brain.memory import forget as remove

        count = remove(database, None if uri is None else open_store(uri).uri)
    if as_json:
        say.print_json({"forgotten": count})
    elif uri is not None and not count:
        raise InvalidInput(f"nothing is known of {uri}; `airflow-elastic brain show` lists what is")
    else:
        say.console().print(f"{count} run{'' if count == 1 else 's'} forgotten")


def _table(runs: tuple[Facts, ...]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("name", "outcome", "took", "goodput", "steps", "seconds a step", "a worker uses"):
        table.add_column(name, justify="right" if name in ("took", "goodput", "steps") else "left")
    table.add_column("run", overflow="fold")
    for one in runs:
        table.add_row(
            say.plain(one.name),
            one.outcome or "goes on",
            say.duration(one.wall_seconds),
            f"{100 * one.goodput:.0f} %" if one.steps else "–",
            str(one.steps),
            ", ".join(f"{s.workers}: {say.number(s.step_seconds)}" for s in one.speeds) or "–",
            _used(one),
            say.plain(one.uri),
        )
    return table


def _used(run: Facts) -> str:
    known = {one.signal: one for one in run.uses}
    words = []
    if "cpu" in known:
        words.append(f"{known['cpu'].p95:.1f} CPU")
    if "memory_bytes" in known:
        words.append(size(known["memory_bytes"].peak))
    if "gpu_memory_bytes" in known:
        words.append(f"{size(known['gpu_memory_bytes'].peak)} of GPU memory")
    return ", ".join(words) or "–"
