"""`airflow-elastic models`: the promotions of a model URI."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click
from rich.table import Table

from airflow_elastic.adapters.records import promotions
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli import console as say
from airflow_elastic.cli.find_run import json_option
from airflow_elastic.cli.help_text import Command
from airflow_elastic.core.units import size
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.errors import RunMissing, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_elastic.spec.models import Promotion


@click.command(cls=Command)
@click.argument("uri")
@json_option
def models(uri: str, as_json: bool) -> None:
    """List the promotions of a model URI: who has promoted which model, when and why.

    The newest promotion is the model that counts. Its weights are a file below the model URI.

    Example:
      airflow-elastic models s3://models/digits
      airflow-elastic models s3://models/digits --json | jq -r '.promotions[-1].weights.key'
    """
    store = open_store(uri)
    found = promotions.history(store)
    if not found:
        raise RunMissing(
            f"{store.uri} has no promotion: check the URI, or promote a model with `airflow-elastic promote`"
        )
    with contextlib.suppress(StoreError):  # the user may have no right to write
        promotions.mend(store)
    if as_json:
        say.print_json({"uri": store.uri, "promotions": [encode(one) for one in found]})
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("number", "when", "step", "of", "size", "metrics", "by", "why"):
        is_number = name in ("number", "step", "size")
        table.add_column(name, justify="right" if is_number else "left", no_wrap=name in ("number", "when"))
    for one in found:
        table.add_row(
            str(one.number),
            say.moment(one.at),
            str(one.step),
            say.plain(one.run),
            size(one.weights.size),
            say.plain(told(one.metrics)),
            say.plain(one.by),
            say.plain(_why(one)),
        )
    say.console().print(table)
    click.echo(f"promotion {found[-1].number} counts: {store.uri}/{found[-1].weights.key}")


def told(metrics: Mapping[str, float]) -> str:
    """Metrics in one line."""
    return ", ".join(f"{name} {value:g}" for name, value in sorted(metrics.items())) or "–"


def _why(one: Promotion) -> str:
    words = [f"back to the model of {one.restores}"] if one.restores is not None else []
    words += [one.why] if one.why else []
    words += [one.rule] if one.rule else []
    return "; ".join(words)
