"""`airflow-elastic brain shares`: how runs share a capacity."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.table import Table

from airflow_elastic.cli import console as say
from airflow_elastic.cli.brain.open import opened
from airflow_elastic.cli.find_run import json_option
from airflow_elastic.cli.help_text import Command


@click.command(cls=Command)
@json_option
def shares(as_json: bool) -> None:
    """Show how runs with `brain: cluster` share each capacity, and why.

    Example:
      airflow-elastic brain shares
    """
    with opened() as database:
        from airflow_elastic.brain import allocation

        found = []
        for pool in allocation.pools(database):
            row = allocation.read(database, pool)[1].newest(time.time())
            given = row.shares()
            for run, entry in sorted(row.entries.items()):
                share = given.get(run)
                found.append(
                    {
                        "pool": pool,
                        "run": run,
                        "priority": entry.priority,
                        "workers": entry.workers,
                        "share": None if share is None else share.workers,
                        "reason": "the capacity is unknown" if share is None else share.reason,
                    }
                )
        where = database.name
    if as_json:
        say.print_json({"brain": where, "shares": found})
    elif found:
        say.console().print(_table(found), crop=False)
    else:
        say.console().print(f"no run shares a capacity in {where}", soft_wrap=True)


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("pool", "run", "priority", "workers", "share"):
        table.add_column(name, justify="left" if name in ("pool", "run") else "right", overflow="fold")
    table.add_column("why", ratio=1)
    for one in found:
        numbers = (one["priority"], one["workers"], "–" if one["share"] is None else one["share"])
        table.add_row(say.plain(one["pool"]), say.plain(one["run"]), *map(str, numbers), one["reason"])
    return table
