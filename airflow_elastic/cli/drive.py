"""Driving a run to its end from a shell: signals, the last words, the exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

from airflow_elastic.cli import say
from airflow_elastic.control.controller import Controller
from airflow_elastic.spec.errors import ElasticError, InvalidInput

if TYPE_CHECKING:
    from airflow_elastic.cli.story import Story
    from airflow_elastic.control.runs import Run
    from airflow_elastic.core.state import RunState
    from airflow_elastic.engines.api import Engine


async def drive(run: Run, engine: Engine, story: Story) -> RunState:
    """Carry the run on to its end. The first Ctrl-C or SIGTERM asks it to save and end; the second one leaves."""
    loop = asyncio.get_running_loop()
    asking: list[asyncio.Task[None]] = []

    def on_signal(number: int) -> None:
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if asking:
            _leave(run, story)
        again = "once more leaves at once" if number == signal.SIGINT else "a second signal leaves at once"
        story.tell(f"{name}: stopping; workers save, then end ({again})", style="bold")
        asking.append(loop.create_task(_ask_stop(run, story, f"{say.asker()} ({name})")))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    state = await Controller(run.store, engine, observer=story).drive()
    await story.show_output(last=True)
    # From here on there is nothing to be stopped any more.
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
    return state


async def _ask_stop(run: Run, story: Story, by: str) -> None:
    while True:
        try:
            await asyncio.to_thread(run.ask_stop, by=by)
        except InvalidInput:  # it has ended by itself meanwhile
            return
        except ElasticError as error:
            story.tell(f"the stop could not be asked for, trying again: {error}", style="yellow")
            await asyncio.sleep(1.0)
        else:
            return


def _leave(run: Run, story: Story) -> None:
    """End this process at once, like a kill: threads that wait for workers to end are not waited for."""
    story.hush()
    story.tell(
        f"left: workers may still be saving and ending; look with `{say.command('status', run.store.uri)}`, "
        f"carry on with `{say.carry_on(run.store.uri)}`",
        style="bold",
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def last_words(run: Run, state: RunState, document: dict[str, object]) -> list[str]:
    """What to say of a run that has ended: how far it came, and what to do next."""
    uri, seconds = run.store.uri, float((state.ended_at or 0.0) - state.created_at)
    failures = [attempt.failure for attempt in state.lives if attempt.failure is not None]
    restarts = len(state.attempts) - 1
    facts = [
        f"step {say.step_of(document)}" if document["step"] else "",
        say.duration(seconds),
        f"{restarts} further attempt{'' if restarts == 1 else 's'}" if restarts else "",
        f"goodput {100 * float(str(document['goodput'])):.0f} %" if document["step"] else "",
        f"checkpoint {state.checkpoint.step}" if state.checkpoint else "no checkpoint",
    ]
    lines = [f"{state.outcome}: {', '.join(fact for fact in facts if fact)}"]
    if state.outcome == "failed" and failures and failures[-1].traceback:
        rank = "the" if failures[-1].rank is None else f"rank {failures[-1].rank}'s"
        lines = [f"{rank} last words:", failures[-1].traceback.rstrip(), *lines]
    if state.outcome == "stopped":
        saved = (
            f"stopped at step {document['step']}, checkpoint {state.checkpoint.step} is saved"
            if state.checkpoint
            else "stopped, and no checkpoint is saved: a script that keeps none of its own begins anew"
        )
        lines.append(f"{saved}; carry it on with `{say.carry_on(uri)}`")
    elif state.outcome == "failed":
        lines.append(f"why: {state.reason}")
        lines.append(
            f"look with `{say.command('status', uri)}`; when it is mended carry it on with `{say.carry_on(uri)}`"
        )
    return lines
