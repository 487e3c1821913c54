"""`airflow-elastic plan`: when a run is done, for how much, and what would change that."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from airflow_elastic.cli import console as say
from airflow_elastic.cli.brain.open import opened
from airflow_elastic.cli.brain.target import find_target
from airflow_elastic.cli.find_run import json_option
from airflow_elastic.cli.help_text import Command
from airflow_elastic.cli.number_types import COUNT, PRICE
from airflow_elastic.core.planning import words
from airflow_elastic.core.planning.known import known_of
from airflow_elastic.core.planning.plan import plan as planned
from airflow_elastic.spec.errors import ElasticError

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_elastic.core.brain.facts import Facts
    from airflow_elastic.core.planning.plan import Plan
    from airflow_elastic.spec.run import RunSpec


@click.command(cls=Command)
@click.argument("target", metavar="SPEC|URI")
@click.option("--engine", help="Where workers would run.  [default: as SPEC says]")
@click.option("--steps", type=COUNT, metavar="N", help="The last step of the training, if it is unknown.")
@click.option(
    "--price-per-gpu-hour",
    "price",
    type=PRICE,
    metavar="X",
    help="The price of one rank for an hour, in any currency.",
)
@json_option
def plan(target: str, engine: str | None, steps: int | None, price: float | None, as_json: bool) -> None:
    """Plan a run: time and cost by number of workers, and what would change them.

    SPEC is a specification in YAML, URI a run. Times are those that the run itself and past runs have measured, see
    `airflow-elastic brain`. The plan says what is unknown. Nothing is started or changed.

    Examples:
      airflow-elastic plan mnist.yaml --steps 50000 --price-per-gpu-hour 2.50
      airflow-elastic plan /mnt/runs/mnist --json
    """
    found = find_target(target, engine)
    past, problem = _past(found.spec)
    known = known_of(found.spec, past, found.own)
    if steps is not None:
        known = replace(known, total_steps=steps)
    made = planned(found.spec, known, time.time(), price)
    if as_json:
        bottleneck = None if made.bottleneck is None else made.bottleneck.name
        run = {"name": found.spec.name, "uri": found.uri, "engine": found.spec.engine}
        say.print_json({"run": run, **asdict(made), "bottleneck": bottleneck, "memory_problem": problem})
        return
    console = say.console()
    if problem is not None:
        console.print(f"without past runs: {problem}", style="yellow", soft_wrap=True)
    if found.own is not None and found.own.outcome == "succeeded":
        console.print("this run has succeeded: the plan is for another like it", soft_wrap=True)
    _show(console, found.spec.name, made, priced=price is not None)


def _past(spec: RunSpec) -> tuple[tuple[Facts, ...], str | None]:
    """The facts about runs that are alike, and why there are none. A plan is made without them, too."""
    try:
        with opened() as database:
            from airflow_elastic.brain.memory import of_kind

            return of_kind(database, spec), None
    except ElasticError as error:
        return (), str(error)


def _show(console: Console, name: str, made: Plan, *, priced: bool) -> None:
    console.print(words.heading(name, made), soft_wrap=True)
    if made.recommended is not None:
        console.print(words.recommendation(made), style="bold", soft_wrap=True)
        console.print(_table(made, priced=priced), crop=False)
    for line in words.rest(made):
        style = "yellow" if line.startswith("unknown") else None
        console.print(line, style=style, soft_wrap=True)


def _table(made: Plan, *, priced: bool) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    heads = ["workers", "a step", "done in", "if all goes well", "if not", "GPU hours", "efficiency", ""]
    if priced:
        heads.insert(6, "cost")
    for head in heads:
        table.add_column(head, justify="left" if head == "" else "right", no_wrap=True)
    for one in made.options:
        times: list[Any] = [one.seconds, one.low, one.high]
        row = [
            str(one.workers),
            f"{say.number(one.step_seconds)} s ±{one.spread:.0%}",
            *("–" if value is None else say.duration(value) for value in times),
            "–" if one.gpu_hours is None else say.number(one.gpu_hours),
            f"{one.efficiency:.0%}",
            ", ".join(_marks(made, one)),
        ]
        if priced:
            row.insert(6, "–" if one.cost is None else f"{one.cost:.2f}")
        table.add_row(*row, style="bold" if one.workers == made.recommended else None)
    return table


def _marks(made: Plan, one: Any) -> list[str]:
    marks = ["measured" if one.measured else "from the curve"]
    if one.workers == made.workers:
        marks.append("as it is")
    if not one.allowed:
        marks.append("not permitted")
    return marks
