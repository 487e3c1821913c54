"""`airflow-elastic scale`, `checkpoint`, `stop`, `resume`, `exclude`: send a request to a run, by its mailbox."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import click

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.cli import console
from airflow_elastic.cli.find_run import SILENCE_SECONDS, controller_hint, find_run, last_write, uri_argument
from airflow_elastic.cli.help_text import Command
from airflow_elastic.cli.number_types import FROM_ZERO, SECONDS
from airflow_elastic.core.event_sentences import workers as count_of
from airflow_elastic.spec.errors import ElasticError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from airflow_elastic.control.runs import Run
    from airflow_elastic.core.state import RunState

_POLL_SECONDS = 0.2


def _wait_options(function: Callable[..., Any]) -> Callable[..., Any]:
    timeout = click.option(
        "--timeout", type=SECONDS, default=600.0, metavar="S", help="Wait at most S seconds.  [default: 600]"
    )
    return click.option("--wait", is_flag=True, help="Return when it is done.")(timeout(function))


@click.command(cls=Command)
@uri_argument
@click.argument("workers", metavar="N", type=int)
def scale(uri: str, workers: int) -> None:
    """Ask a run for another number of workers.

    Workers save and go on from there. A scale step does not count as a restart. N must be between --min and --max of
    the run.

    Example:
      airflow-elastic scale /mnt/runs/mnist 4
    """
    run = find_run(uri)
    before = run.state.target
    run.ask_scale(workers, by=console.asker())
    _asked(run, f"asked for {count_of(workers)}; wanted so far: {before}")


@click.command("now", cls=Command)
@uri_argument
@_wait_options
def checkpoint(uri: str, wait: bool, timeout: float) -> None:
    """Ask a run for a checkpoint now.

    The training script must use `airflow_elastic.runtime`, which it needs for all checkpoints.

    Example:
      airflow-elastic checkpoint /mnt/runs/mnist --wait
    """
    run = find_run(uri)
    before = max(checkpoint_retention.own_steps(run.store, -1), default=-1)
    run.ask_save(by=console.asker())
    if not wait:
        _asked(run, "asked for a checkpoint")
        return
    seen: set[int] = set()

    def answered(state: RunState) -> bool:
        # A checkpoint saved before the request may be committed only now. A second one was saved after the request.
        new = set(checkpoint_retention.own_steps(run.store, before)) - seen
        seen.update(new)
        return state.ended or len(seen) > 1 or any(_answers(run, step) for step in new)

    state = _wait(run, timeout, "a new checkpoint", answered)
    if not seen:
        raise ElasticError(
            f"{run.store.uri} ended without another checkpoint ({state.outcome}: {state.reason})"
        )
    click.echo(f"checkpoint {max(seen)} committed")


@click.command(cls=Command)
@uri_argument
@_wait_options
def stop(uri: str, wait: bool, timeout: float) -> int:
    """Ask a run to save and end. It can be carried on later with `airflow-elastic run --uri URI`.

    Example:
      airflow-elastic stop /mnt/runs/mnist --wait
    """
    run = find_run(uri)
    run.ask_stop(by=console.asker())
    if not wait:
        _asked(run, "asked to save and end")
        return 0
    state = _wait(run, timeout, "its end", lambda state: state.ended)
    click.echo(f"{state.outcome} at step {run.status()['step']}: {state.reason}")
    return 1 if state.outcome == "failed" else 0


@click.command(cls=Command)
@uri_argument
@click.argument("step", type=FROM_ZERO)
def resume(uri: str, step: int) -> None:
    """Let a run go on from the checkpoint of a chosen STEP, e.g. when its loss has diverged later.

    The current attempt ends without saving, and a new one begins from that checkpoint. It costs no restart. Newer
    checkpoints are set aside. The chosen one is pinned. A run that has failed, or was stopped, goes on from there when
    somebody carries it on.

    Example:
      airflow-elastic resume /mnt/runs/mnist 340
    """
    run = find_run(uri)
    run.ask_resume(step, by=console.asker())
    if run.state.ended:
        click.echo(
            f"{run.store.uri}: it goes on from step {step} when it is carried on: "
            f"{console.command('run --uri', run.store.uri)}"
        )
    else:
        _asked(run, f"asked to go on from step {step}")


@click.command(cls=Command)
@uri_argument
@click.argument("machine")
@click.option("--remove", is_flag=True, help="Allow the machine again.")
def exclude(uri: str, machine: str, remove: bool) -> None:
    """Exclude a machine: from the next attempt on, no worker runs there.

    The current attempt stays where it is. MACHINE is the name that `status` and the engine use, such as that of a
    Kubernetes node.

    Example:
      airflow-elastic exclude s3://bucket/runs/mnist gpu-node-7
    """
    run = find_run(uri)
    run.ask_exclude(machine, by=console.asker(), exclude=not remove)
    _asked(run, f"asked to {'allow' if remove else 'exclude'} machine {machine} from the next attempt on")


def _answers(run: Run, step: int) -> bool:
    """Whether the checkpoint answers the request: its reason is a request, or a scale step that came first."""
    with contextlib.suppress(CheckpointDamaged):  # removed meanwhile
        return checkpoints.read(run.store, step).reason in ("requested", "breakpoint")
    return False


def _asked(run: Run, text: str) -> None:
    click.echo(f"{run.store.uri}: {text}; it is done when its controller reads it ({last_write(run.store)})")
    if (hint := controller_hint(run.store, run.state)) is not None:
        click.echo(hint, err=True)


def _wait(run: Run, timeout: float, what: str, done: Callable[[RunState], bool]) -> RunState:
    """Wait for a condition. If no controller seems to drive the run, say so once."""
    began, told = time.monotonic(), False
    while not done(state := run.state):
        waited = time.monotonic() - began
        if waited > timeout:
            raise ElasticError(
                f"{run.store.uri}: waited {timeout:g} s for {what} without success; the request stands, "
                f"look with `{console.command('status', run.store.uri)}`"
            )
        hint = controller_hint(run.store, state) if not told and waited < SILENCE_SECONDS * 3 else None
        if hint is not None:
            click.echo(hint, err=True)
            told = True
        time.sleep(_POLL_SECONDS)
    return state
