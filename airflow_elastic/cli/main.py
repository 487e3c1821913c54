"""`airflow-elastic`: its commands, their errors and exit codes.

Exit codes: 0 success, 1 failure, 2 bad input (nothing was created or changed). An error is one sentence on standard
error that says what to do; only a bug of this program shows a traceback.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

import airflow_elastic
from airflow_elastic.cli.brain.group import brain
from airflow_elastic.cli.brain.plan import plan
from airflow_elastic.cli.cluster.doctor import doctor
from airflow_elastic.cli.cluster.reap import reap
from airflow_elastic.cli.cluster.render import render
from airflow_elastic.cli.cluster.simulate import simulate
from airflow_elastic.cli.drive.run import run
from airflow_elastic.cli.help_text import keep_examples
from airflow_elastic.cli.inspect.all_runs import list_runs, top
from airflow_elastic.cli.inspect.checkpoint_export import checkpoint
from airflow_elastic.cli.inspect.checkpoints import pin, prune, verify
from airflow_elastic.cli.inspect.events import events
from airflow_elastic.cli.inspect.logs import logs
from airflow_elastic.cli.inspect.metrics import metrics
from airflow_elastic.cli.inspect.requests import exclude, resume, scale, stop
from airflow_elastic.cli.inspect.status import status
from airflow_elastic.cli.inspect.ui import ui
from airflow_elastic.cli.models.models import models
from airflow_elastic.cli.models.promote import promote, rollback
from airflow_elastic.spec.errors import ElasticError, InvalidInput, StoreUnfit

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "airflow-elastic"

_AFTER = f"`{PROGRAM} run --workers 2 -- train.py --epochs 1`"


class _Group(click.Group):
    """Lists commands in the order of their use, not by the alphabet."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "help": keep_examples(options.get("help"))})

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # e.g. `| head` has ended; click would call that a failure
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return code

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(airflow_elastic.__version__, prog_name=PROGRAM)
def cli() -> None:
    """Elastic, fault-tolerant training, driven from a shell.

    All data of a run is stored under its URI: a folder, or an S3 prefix such as s3://bucket/runs/mnist. A command that
    takes a URI works on every machine that can reach it.

    Exit codes: 0 success, 1 failure, 2 bad input (nothing was created or changed).

    Example:
      airflow-elastic run --workers 2 --uri /mnt/runs/mnist -- train.py --epochs 3
      airflow-elastic status /mnt/runs/mnist
    """


for _command in (
    run,
    status,
    events,
    logs,
    metrics,
    scale,
    checkpoint,
    stop,
    resume,
    exclude,
    verify,
    prune,
    pin,
    promote,
    rollback,
    models,
    list_runs,
    top,
    ui,
    render,
    simulate,
    reap,
    doctor,
    plan,
    brain,
):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command that the arguments name, and exit."""
    try:
        code = cli.main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = 2
    except click.ClickException as error:
        context = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else PROGRAM
        text = f"{error.format_message().rstrip('.')}; see `{context} --help`"
        if isinstance(error, click.NoSuchOption) and context.endswith(" run"):
            text += f"; write the script and its options after --: {_AFTER}"
        code = _fail(text, error.exit_code)
    except (InvalidInput, StoreUnfit) as error:  # storage that can never hold a run is bad input, too
        code = _fail(str(error), 2)
    except ElasticError as error:
        code = _fail(str(error), 1)
    except (KeyboardInterrupt, click.Abort):
        code = _fail("interrupted", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(text: str, code: int) -> int:
    click.echo(f"{PROGRAM}: {text}", err=True)
    return code


if __name__ == "__main__":
    main()
