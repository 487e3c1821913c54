"""`airflow-elastic logs`: show the output of ranks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from airflow_elastic.cli.find_run import find_run, uri_argument
from airflow_elastic.cli.help_text import Command
from airflow_elastic.cli.number_types import COUNT, FROM_ZERO
from airflow_elastic.cli.rank_output import Tail, find_logs
from airflow_elastic.core.state import Phase
from airflow_elastic.spec.errors import InvalidInput

if TYPE_CHECKING:
    from airflow_elastic.adapters.records.rank_output import Log
    from airflow_elastic.core.state import RunState

_POLL_SECONDS = 0.5


@click.command(cls=Command)
@uri_argument
@click.option("--rank", type=FROM_ZERO, help="Only this rank.  [default: all, each line with its rank]")
@click.option("--attempt", type=COUNT, help="Only this attempt.  [default: the newest with output]")
@click.option(
    "--follow", "-f", is_flag=True, help="Go on until the run, or with --attempt that attempt, has ended."
)
def logs(uri: str, rank: int | None, attempt: int | None, follow: bool) -> None:
    """Show the output of a run's ranks.

    Examples:
      airflow-elastic logs /mnt/runs/mnist --rank 0 --follow
      airflow-elastic logs /mnt/runs/mnist --attempt 1
    """
    run = find_run(uri)
    found = find_logs(run.store)
    chosen = attempt or (found[-1].attempt if found else None)
    _check(found, run.store.uri, rank, attempt, waits=follow and not _over(run.state, attempt))
    tail = Tail(run.store, rank=rank)
    try:
        while True:
            over = not follow or _over(run.state, attempt)
            for log, lines in tail.news(chosen, last=over):
                prefix = "" if rank is not None else f"{log.rank} | "
                click.echo("".join(f"{prefix}{line}\n" for line in lines), nl=False)
            if over:
                return
            # Go on with the next attempt as soon as it has output.
            chosen = attempt or max((log.attempt for log in find_logs(run.store)), default=None)
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        return


def _over(state: RunState, attempt: int | None) -> bool:
    if attempt is None or attempt > len(state.attempts):
        return state.ended
    return state.ended or state.attempts[attempt - 1].phase is Phase.GONE


def _check(found: list[Log], uri: str, rank: int | None, attempt: int | None, *, waits: bool) -> None:
    """Refuse a rank or an attempt without output, and name those that have some."""
    if waits or any(rank in (None, log.rank) and attempt in (None, log.attempt) for log in found):
        return
    if not found:
        raise InvalidInput(
            f"{uri} holds no output yet: its ranks have not started; wait for it with --follow"
        )
    attempts = _numbers({log.attempt for log in found})
    ranks = _numbers({log.rank for log in found if attempt in (None, log.attempt)})
    if attempt is not None and not ranks:
        raise InvalidInput(f"{uri} holds no output of attempt {attempt}: there is output of {attempts}")
    raise InvalidInput(f"{uri} holds no output of rank {rank}: there is output of {ranks}")


def _numbers(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
