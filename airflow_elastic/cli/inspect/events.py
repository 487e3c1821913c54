"""`airflow-elastic events`: what happened to a run, from its journal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.cli import console
from airflow_elastic.cli.find_run import find_run, uri_argument
from airflow_elastic.cli.help_text import Command
from airflow_elastic.core.event_sentences import sentence
from airflow_elastic.core.machine import create, evolve
from airflow_elastic.core.severity import severity_of
from airflow_elastic.spec.events import event_to_dict

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.events import Event

_POLL_SECONDS = 0.5


@click.command(cls=Command)
@uri_argument
@click.option("--json", "as_json", is_flag=True, help="Print each event as JSON, one a line.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run has ended.")
def events(uri: str, as_json: bool, follow: bool) -> None:
    """Show what happened to a run.

    It prints a line for each entry of the run's journal.

    Examples:
      airflow-elastic events /mnt/runs/mnist
      airflow-elastic events /mnt/runs/mnist --follow
      airflow-elastic events /mnt/runs/mnist --json | jq 'select(.event == "WorkersEnded")'
    """
    journal = Journal(find_run(uri).store)
    state: RunState | None = None
    seq = 0
    try:
        while True:
            for event in journal.read(seq):
                before, state = state, create(event) if state is None else evolve(state, event)
                _show(seq, event, before, state, as_json=as_json)
                seq += 1
            if not follow or (state is not None and state.ended):
                return
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:  # the usual end of --follow
        return


def _show(seq: int, event: Event, before: RunState | None, state: RunState, *, as_json: bool) -> None:
    told, grave = sentence(event, before, state), severity_of(event, before, state)
    if as_json:
        plain = {"seq": seq, "sentence": told, "level": str(grave), **event_to_dict(event)}
        console.print_json(plain, line=True)
    else:
        # Each event in a journal has changed the state, and has a sentence. If one has not, print its type.
        click.echo(f"{console.moment(event.at)}  {console.level(grave)}{told or type(event).__name__}")
