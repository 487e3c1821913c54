"""`airflow-elastic run`: start a run, or go on with one."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli import console as say
from airflow_elastic.cli.drive.detach import detach, log_path
from airflow_elastic.cli.drive.drive import closing_lines, drive
from airflow_elastic.cli.drive.options import (
    as_typed,
    check_here,
    check_secrets,
    spec_options,
    with_defaults,
    with_overrides,
)
from airflow_elastic.cli.drive.progress_lines import ProgressLines, progress_line
from airflow_elastic.cli.drive.spec_file import in_file, read_plain
from airflow_elastic.cli.help_text import Command
from airflow_elastic.control.runs import Run, start_run
from airflow_elastic.core.event_sentences import tensorboard_command
from airflow_elastic.core.machine import replay
from airflow_elastic.engines.api import find_engine
from airflow_elastic.spec.errors import InvalidInput, RunDiffers, RunMissing, SpecError
from airflow_elastic.spec.run import RunSpec

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.core.state import RunState


@click.command(cls=Command)
@click.option(
    "--uri",
    "--run-uri",
    help="Where the run is stored; a new one: an empty or new folder or prefix.  [default: ./elastic-runs/NAME-TIME]",
)
@click.option(
    "--spec", "spec_path", metavar="SPEC.yaml", help="What the run is; options override its values."
)
@click.option(
    "--object", "which", metavar="KIND/NAME", help="Which object is meant, where --spec names a manifest."
)
@spec_options
@click.option("--detach", "detached", is_flag=True, help="Start it, leave it running and return.")
@click.option(
    "--output/--no-output", default=None, help="Show what rank 0 prints.  [default: not on a terminal]"
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the final status document; progress goes to stderr."
)
@click.argument("command", nargs=-1)
def run(
    uri: str | None,
    spec_path: str | None,
    which: str | None,
    command: tuple[str, ...],
    detached: bool,
    output: bool | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Drive a run to its end, in the foreground.

    COMMAND is the training script with its arguments, or `-m module`; write it after `--`. SPEC.yaml is a
    specification, or a manifest of Kubernetes. Its kind is Job, PyTorchJob, TrainJob, ElasticJob or PyTorchTrainingJob.

    If the URI already has the same run, this command goes on with it: this replaces a killed controller. Without
    COMMAND and --spec it goes on with the run at the URI as it is. A failed or stopped run goes on from its newest
    checkpoint, with its full number of restarts.

    Ctrl-C and SIGTERM stop the run: workers save, then end. The second one leaves as soon as workers have the request;
    the third one leaves at once. If this command is killed, the workers train on.

    Exit codes: 0 succeeded, 1 failed or stopped, 2 bad input (nothing was created).

    Examples:
      airflow-elastic run --workers 2 --uri /mnt/runs/mnist -- train.py --epochs 3
      airflow-elastic run --workers 2 --min 1 --max 4 --scale-at 500=4 -- train.py
      airflow-elastic run --spec mnist.yaml --uri s3://bucket/runs/mnist --detach
      airflow-elastic run --spec jobs.yaml --object PyTorchJob/mnist --uri s3://bucket/runs/mnist
      airflow-elastic run --uri /mnt/runs/mnist        # go on with it
    """
    if uri is None and not command and spec_path is None:
        raise InvalidInput(
            "there is nothing to run: name a script after --, or a file with --spec, or with --uri a run to carry on"
        )
    if spec_path is None and command and command[0].endswith((".yaml", ".yml")):
        raise InvalidInput(
            f"{command[0]} is no script: name a specification or a manifest with --spec {command[0]}"
        )
    if which is not None and spec_path is None:
        raise InvalidInput(f"--object: given {which}; allowed: beside --spec, which names the manifest")
    if uri is not None and not uri.strip():
        raise InvalidInput("--uri is empty: name a folder or s3://bucket/prefix, or leave it out")
    owner = None if detached else f"{say.asker()} (process {os.getpid()})"
    try:
        known, spec, store = _wanted(uri, spec_path, which, command, options)
        found = start_run(store, spec, owner=owner)
    except SpecError as error:
        typed = as_typed(error, options, nothing_else=spec_path is None and bool(command))
        raise in_file(typed, spec_path) from None
    except RunDiffers as error:
        raise error.advised(_instead(uri or "", error.workers)) from None
    console = say.console(stderr=as_json)
    console.print(f"run: {store.uri}", soft_wrap=True, style="bold")
    if known:
        console.print(f"carrying on: {progress_line(found.state, None)}", soft_wrap=True)
    if (state := found.state).ended:  # it has succeeded, because start_run has reopened any other one
        console.print(f"{store.uri} is complete already: nothing is started", soft_wrap=True)
        return _conclude(console, found, state, as_json=as_json)
    if spec.tensorboard:
        console.print(f"tensorboard: {tensorboard_command(store.uri)}", soft_wrap=True, style="dim")
    if detached:
        return _detach(found, output=output is not False, as_json=as_json)
    shown = output if output is not None else not console.is_terminal
    if not shown:
        console.print(f"output: {say.command('logs', store.uri)} --follow", soft_wrap=True, style="dim")
    with ProgressLines(console, store, known=known, output=shown) as story:
        state = asyncio.run(drive(found, find_engine(spec.engine), story))
    return _conclude(console, found, state, as_json=as_json)


def _conclude(console: Console, run: Run, state: RunState, *, as_json: bool) -> int:
    """Print how a run has ended. Returns the exit code."""
    document = run.status()
    for line in closing_lines(run, state, document):
        console.print(line, soft_wrap=True)
    if as_json:
        say.print_json(document)
    return 0 if state.outcome == "succeeded" else 1


def _instead(uri: str, workers: int | None) -> str:
    """What to do if another run is stored at the URI."""
    uri = open_store(uri).uri
    scale = "" if workers is None else f"change its workers with `{say.command('scale', uri)} {workers}`, "
    return f"{scale}carry that run on as it is with `{say.carry_on(uri)}`, or use another --uri"


def _wanted(
    uri: str | None,
    spec_path: str | None,
    which: str | None,
    command: tuple[str, ...],
    options: dict[str, Any],
) -> tuple[int, RunSpec, Store]:
    """The number of events in the journal, the specification of the run, and its store. Creates nothing."""
    if spec_path is None and not command:
        store = open_store(uri or "")
        events = Journal(store).read()
        state = replay(events)
        if state is None:
            raise RunMissing(
                f"{store.uri} holds no run to carry on: to start one there, name a script after --"
            )
        spec = RunSpec.from_dict(with_overrides(state.spec.to_dict(), options, ()))
        check_secrets(spec)
        return len(events), spec, store
    base = read_plain(spec_path, which) if spec_path is not None else {}
    spec = RunSpec.from_dict(with_defaults(with_overrides(base, options, command)))
    find_engine(spec.engine)  # first, because it decides where the script must exist
    check_here(spec)
    store = open_store(uri or _fresh(spec.name))
    return len(Journal(store).read()), spec, store


def _fresh(name: str) -> str:
    """A folder that no run has yet."""
    base = Path("elastic-runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = (base if n == 1 else Path(f"{base}-{n}") for n in range(1, 1000))
    return os.path.abspath(next(path for path in candidates if not path.exists()))


def _detach(found: Run, *, output: bool, as_json: bool) -> int:
    uri, pid = found.store.uri, detach(found, output=output)
    console = say.console(stderr=as_json)
    for line in (
        f"detached: process {pid} drives it and writes {log_path(found)}",
        f"status:   {say.command('status', uri)}",
        f"output:   {say.command('logs', uri)} --follow",
        f"stop:     {say.command('stop', uri)}",
    ):
        console.print(line, soft_wrap=True)
    if as_json:
        say.print_json(found.status())
    return 0
