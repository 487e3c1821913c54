"""Drive a run to its end from a shell: signals, last lines, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any, cast

from airflow_elastic.cli import console
from airflow_elastic.control.controller import Controller
from airflow_elastic.core.restart import COMPLETE
from airflow_elastic.core.state import FailureKind
from airflow_elastic.spec.errors import ElasticError, InvalidInput

if TYPE_CHECKING:
    from airflow_elastic.cli.drive.progress_lines import ProgressLines
    from airflow_elastic.control.runs import Run
    from airflow_elastic.core.state import RunState
    from airflow_elastic.engines.api import Engine, Job


#: Seconds that a second signal waits until the run has the request to stop: a poll of the controller, a slow storage.
LEAVE_SECONDS = 5.0

#: Longest delay in seconds of an exit by a terminal that accepts no output.
LAST_WORDS_SECONDS = 1.0

#: Longest pause in seconds between two tries to ask for a stop.
LONGEST_SECONDS = 30.0

#: Seconds from an engine's `delete` until its workers have the signal, which is the first thing that it sends.
_TOLD_SECONDS = 0.5


class _Noting:
    """An engine that notes when it began to end workers. From then on they end even if this process is killed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.ending_since: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def delete(self, job: Job, grace_seconds: float) -> None:
        self.ending_since = time.monotonic()
        try:
            await self._engine.delete(job, grace_seconds)
        except ElasticError:
            self.ending_since = None
            raise

    @property
    def told(self) -> bool:
        return self.ending_since is not None and time.monotonic() - self.ending_since >= _TOLD_SECONDS


async def drive(run: Run, engine: Engine, story: ProgressLines) -> RunState:
    """Drive the run to its end.

    The first Ctrl-C or SIGTERM asks it to save and end. The second one leaves as soon as workers have the request, and
    says so if they do not get it. The third one leaves at once.
    """
    loop = asyncio.get_running_loop()
    noting = _Noting(engine)
    asking: list[asyncio.Task[None]] = []
    leaving: list[asyncio.Task[None]] = []

    def on_signal(number: int) -> None:
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if leaving:
            _leave(run, story, posted=asking[0].done(), told=noting.told)
        elif asking:
            leaving.append(loop.create_task(_leave_once_told(run, story, asking[0], noting)))
        else:
            again = (
                "once more leaves at once" if number == signal.SIGINT else "a second signal leaves at once"
            )
            story.tell(f"{name}: stopping; workers save, then end ({again})", style="bold")
            asking.append(loop.create_task(_ask_stop(run, story, f"{console.asker()} ({name})")))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    state = await Controller(run.store, cast("Engine", noting), observer=story).drive()
    for task in leaving:  # the run has ended before this process left: show its end
        task.cancel()
    await asyncio.to_thread(story.end)
    # The run has ended: signals have their usual effect again.
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
    return state


async def _ask_stop(run: Run, story: ProgressLines, by: str) -> None:
    pause = 1.0
    while True:
        try:
            await asyncio.to_thread(run.ask_stop, by=by)
        except InvalidInput:  # the run has ended
            return
        except ElasticError as error:
            story.tell(
                f"the stop could not be asked for, trying again in {pause:.0f} s: {error}", style="yellow"
            )
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_SECONDS)
        else:
            return


async def _leave_once_told(
    run: Run, story: ProgressLines, asking: asyncio.Task[None], noting: _Noting
) -> None:
    """Leave when the run and its workers have the request to stop, or after LEAVE_SECONDS."""
    taken = False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LEAVE_SECONDS):
            await asyncio.shield(asking)
            while not (taken and noting.told):
                with contextlib.suppress(ElasticError):
                    taken = taken or (await asyncio.to_thread(lambda: run.state)).ending is not None
                await asyncio.sleep(0.05)
    _leave(run, story, posted=asking.done(), told=taken and noting.told)


def _leave(run: Run, story: ProgressLines, *, posted: bool, told: bool) -> None:
    """End this process at once, without waiting for threads that wait for workers."""
    carry_on = console.carry_on(run.store.uri)
    if told:
        text = (
            "left: the workers have the request to stop, and may still be saving and ending; look with "
            f"`{console.command('status', run.store.uri)}`, carry on with `{carry_on}`"
        )
    else:
        text = "left before the workers got the request to stop: they TRAIN ON; stop them with "
        text += f"`{carry_on}`, " + ("which finds the request to stop" if posted else "and Ctrl-C there")
    story.tell(text, style="bold")
    story.end(LAST_WORDS_SECONDS)
    os._exit(1)


def closing_lines(run: Run, state: RunState, document: dict[str, object]) -> list[str]:
    """The last lines about a run that has ended: its result, and what to do next."""
    uri, spent = run.store.uri, cast("dict[str, float]", document["seconds"])
    failures = [attempt.failure for attempt in state.lives if attempt.failure is not None]
    restarts = len(state.attempts) - 1
    facts = [
        f"step {console.step_of(document)}" if document["step"] else "",
        console.duration(spent["wall"]),
        f"{restarts} further attempt{'' if restarts == 1 else 's'}" if restarts else "",
        f"goodput {100 * float(str(document['goodput'])):.0f} %" if document["step"] else "",
        f"checkpoint {state.checkpoint.step}" if state.checkpoint else "no checkpoint",
    ]
    lines = [f"{state.outcome}: {', '.join(fact for fact in facts if fact)}"]
    if state.outcome == "succeeded" and state.reason != COMPLETE:
        lines.append(str(state.reason))
    if state.outcome == "failed" and failures and failures[-1].traceback:
        rank = "the" if failures[-1].rank is None else f"rank {failures[-1].rank}'s"
        hung = failures[-1].kind is FailureKind.NO_PROGRESS
        head = "where its ranks stood:" if hung else f"{rank} last words:"
        lines = [head, failures[-1].traceback.rstrip(), *lines]
    if state.outcome == "stopped":
        saved = (
            f"stopped at step {document['step']}, checkpoint {state.checkpoint.step} is saved"
            if state.checkpoint
            else "stopped, and no checkpoint is saved: a script that keeps none of its own starts again"
        )
        lines.append(f"{saved}; carry it on with `{console.carry_on(uri)}`")
    elif state.outcome == "failed":
        lines.append(f"why: {state.reason}")
        refused = bool(failures) and failures[-1].kind is FailureKind.BAD_ARGUMENTS
        lines.append(
            "a run keeps its arguments: with others begin a new one, under another --uri"
            if refused and not state.checkpoint
            else f"look with `{console.command('status', uri)}`; when it is fixed, carry it on with "
            f"`{console.carry_on(uri)}`"
        )
    return lines
