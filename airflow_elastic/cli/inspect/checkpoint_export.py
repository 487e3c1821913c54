"""`airflow-elastic checkpoint`: ask for a checkpoint, list all, or export one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import click

from airflow_elastic.adapters.plugins import how_to_install
from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.cli.find_run import find_run, uri_argument
from airflow_elastic.cli.help_text import Command, keep_examples
from airflow_elastic.cli.inspect.checkpoints import list_checkpoints
from airflow_elastic.cli.inspect.requests import checkpoint as now
from airflow_elastic.cli.number_types import FROM_ZERO
from airflow_elastic.launchers.api import BY_NAME
from airflow_elastic.spec.errors import InvalidInput


class _Checkpoint(click.Group):
    """A group whose command `now` may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            if len(args) > 1 and not any(word.startswith("-") for word in args[:2]):  # `now` takes one URI
                known = ", ".join(sorted(self.commands))
                raise click.UsageError(f"there is no command `{args[0]}`; there are: {known}", ctx)
            args = ["now", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_Checkpoint,
    help=keep_examples(
        """Ask a run for a checkpoint now, list all, or export one.

    `checkpoint URI` is short for `checkpoint now URI`.

    Example:
      airflow-elastic checkpoint /mnt/runs/mnist --wait
      airflow-elastic checkpoint list /mnt/runs/mnist
      airflow-elastic checkpoint export /mnt/runs/mnist mnist.safetensors
    """
    ),
)
def checkpoint() -> None:
    """See the help above."""


@click.command(cls=Command)
@uri_argument
@click.argument("file")
@click.option("--step", type=FROM_ZERO, metavar="N", help="Step of the checkpoint.  [default: the newest]")
def export(uri: str, file: str, step: int | None) -> int:
    """Write the model of a checkpoint into one file, or to an s3:// URI.

    The suffix of the file chooses the format: .pt, .pth and .bin are a state dict of torch.save, .safetensors is
    safetensors. The model is complete for any number of ranks that have saved it, and every byte is checked. This
    command needs torch.

    Example:
      airflow-elastic checkpoint export /mnt/runs/mnist mnist.safetensors --step 340
    """
    store = find_run(uri).store
    if importlib.util.find_spec("torch") is None:
        raise InvalidInput(f"{sys.executable} has no torch: {how_to_install('torch')}, or export elsewhere")
    if step is not None and step not in (there := checkpoints.steps(store)):
        told = ", ".join(map(str, there)) or "none"
        raise InvalidInput(f"step {step} has no committed checkpoint; there are: {told}")
    words = [store.uri, file, *([] if step is None else [str(step)])]
    # In a process of its own, because the command line must not import torch.
    command = [sys.executable, *BY_NAME, "airflow_elastic.runtime.checkpoint.restore.weights", *words]
    return subprocess.run(command, check=False).returncode


for _command in (now, list_checkpoints, export):
    checkpoint.add_command(_command)
