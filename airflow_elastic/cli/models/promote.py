"""`airflow-elastic promote` and `rollback`: change the promoted model of a model URI."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli import console as say
from airflow_elastic.cli.find_run import find_run
from airflow_elastic.cli.help_text import Command
from airflow_elastic.cli.models.models import told
from airflow_elastic.cli.number_types import COUNT, FROM_ZERO
from airflow_elastic.control.models import NotBetter, Request, TorchExporter
from airflow_elastic.control.models import promote as promote_checkpoint
from airflow_elastic.control.models import rollback as go_back
from airflow_elastic.control.models.publish import SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command(cls=Command)
@click.argument("run_uri")
@click.argument("model_uri")
@click.option("--step", type=FROM_ZERO, metavar="N", help="Step of the checkpoint.  [default: the newest]")
@click.option("--best", metavar="METRIC", help="The best checkpoint by a metric, such as 'min val_loss'.")
@click.option("--rule", metavar="RULE", help="Promote only if this holds, such as 'accuracy > promoted'.")
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME=N", help="Instead of the checkpoint's own; repeat it."
)
@click.option("--why", metavar="TEXT", help="Kept beside the model.")
@click.option(
    "--format",
    "form",
    type=click.Choice(sorted(SUFFIXES)),
    default="safetensors",
    help="Of the file of weights.  [default: safetensors]",
)
def promote(
    run_uri: str,
    model_uri: str,
    step: int | None,
    best: str | None,
    rule: str | None,
    metrics: Sequence[str],
    why: str | None,
    form: str,
) -> int:
    """Promote a checkpoint of a run: copy its weights to a model URI, and make it the model that counts.

    One atomic change promotes it. In a rule, `promoted` is the metric of the model that counts so far; `promoted +
    0.01` and `promoted * 0.99` are allowed, and `and` joins comparisons. If nothing is promoted yet, they hold. Exits 1
    if the rule does not hold. This command needs torch.

    Example:
      airflow-elastic promote /mnt/runs/mnist s3://models/mnist --rule 'accuracy > promoted'
    """
    given = _numbers(metrics) if metrics else None
    request = Request(say.asker(), step=step, best=best, rule=rule, metrics=given, why=why, format=form)
    run, model = find_run(run_uri).store, open_store(model_uri)
    try:
        record = promote_checkpoint(model, run, request, TorchExporter())
    except NotBetter as error:
        click.echo(f"not promoted: {error}")
        return 1
    click.echo(
        f"promotion {record.number} of {model.uri}: checkpoint {record.step} of {record.run}, {told(record.metrics)}"
    )
    return 0


@click.command(cls=Command)
@click.argument("model_uri")
@click.option("--to", type=COUNT, metavar="N", help="Number of the promotion.  [default: the model before]")
@click.option("--why", required=True, metavar="TEXT", help="Kept beside the model.")
def rollback(model_uri: str, to: int | None, why: str) -> None:
    """Make an earlier promoted model the one that counts again.

    Its weights are read back first. A model that a rollback has left behind is not chosen again, unless you name its
    promotion.

    Example:
      airflow-elastic rollback s3://models/mnist --why 'it was trained on test data'
    """
    model = open_store(model_uri)
    record = go_back(model, by=say.asker(), why=why, to=to)
    click.echo(
        f"promotion {record.number} of {model.uri}: the model of promotion {record.restores} again, checkpoint "
        f"{record.step} of {record.run}"
    )


def _numbers(metrics: Sequence[str]) -> dict[str, float]:
    found = {}
    for text in metrics:
        name, sign, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = math.nan
        if not name or not sign or not math.isfinite(found[name]):
            raise click.BadParameter(
                f"given {text!r}; allowed: a name, = and a number, such as accuracy=0.93"
            )
    return found
