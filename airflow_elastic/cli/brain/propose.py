"""`airflow-elastic brain propose`: values that past runs propose for a run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click
from rich.table import Table

from airflow_elastic.cli import console as say
from airflow_elastic.cli.brain.open import opened
from airflow_elastic.cli.brain.target import find_target
from airflow_elastic.cli.find_run import json_option
from airflow_elastic.cli.help_text import Command
from airflow_elastic.core.brain.learnt import with_learnt
from airflow_elastic.core.brain.proposals import proposals
from airflow_elastic.spec.codec import encode

if TYPE_CHECKING:
    from airflow_elastic.spec.brain.proposal import Proposal


@click.command(cls=Command)
@click.argument("target", metavar="SPEC|URI")
@json_option
def propose(target: str, as_json: bool) -> None:
    """Propose values for a run, from past runs that are alike.

    SPEC is a specification in YAML, URI a run. Alike are runs of the same script with the same engine, launcher, ranks
    and devices. Each proposal says why, and on how many runs it rests. Nothing is changed.

    Examples:
      airflow-elastic brain propose mnist.yaml
      airflow-elastic brain propose /mnt/runs/mnist --json
    """
    found = find_target(target)
    with opened() as database:
        from airflow_elastic.brain.memory import keep_proposals, of_kind

        past = of_kind(database, found.spec)
        made = proposals(found.spec, past)
        if found.uri is not None:
            keep_proposals(database, found.uri, made, time.time())
        where = database.name
    if as_json:
        document = [{**encode(one), "hint": one.hint} for one in made]
        say.print_json({"brain": where, "alike": len(past), "proposals": document})
        return
    console = say.console()
    if not made:
        runs = f"{len(past)} run{'' if len(past) == 1 else 's'} like this one known in {where}"
        console.print(f"nothing to propose: {runs}", soft_wrap=True)
        return
    taken = with_learnt(found.spec, made)[1]
    console.print(_table(made, taken), crop=False)


def _table(made: tuple[Proposal, ...], taken: tuple[Proposal, ...]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("field", "now", "proposed", "runs", "used by"):
        table.add_column(
            name, justify="right" if name in ("now", "proposed", "runs") else "left", no_wrap=True
        )
    table.add_column("why", ratio=1)
    for one in made:
        used = "brain: cluster" if one in taken else "you only"
        table.add_row(
            one.field,
            "–" if one.now is None else str(one.now),
            str(one.value),
            str(one.runs),
            used,
            one.reason,
        )
    return table
