"""The lines that `airflow-elastic run` shows while it drives a run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from airflow_elastic.cli import console as say
from airflow_elastic.cli.drive.printer import Printer
from airflow_elastic.cli.rank_output import Tail
from airflow_elastic.control.observer import Observer
from airflow_elastic.core.event_sentences import (
    restoring,
    sentence,
    share,
    straggler_sentence,
    waiting,
    waits,
    workers,
)
from airflow_elastic.core.severity import Severity, severity_of
from airflow_elastic.core.status_document import word

if TYPE_CHECKING:
    from typing import Self

    from rich.console import RenderableType

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.cli.console import QuietConsole
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.errors import ElasticError
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.status import JobStatus, Progress, Wait

#: Seconds between two lines about the progress in a log file.
LINE_SECONDS = 10.0

#: Longest delay in seconds of an exit by a terminal that accepts no output.
_LEAVE_SECONDS = 1.0


class ProgressLines(Observer):
    """Shows events as they happen, and progress: as a live line on a terminal, every 10 s in a file.

    Args:
        console: prints the lines.
        store: the run's store.
        known: number of past events, which are not shown again. Default: 0.
        output: whether to show rank 0's output. Default: False.
    """

    def __init__(self, console: QuietConsole, store: Store, *, known: int = 0, output: bool = False) -> None:
        self._console, self._known = console, known
        tail = Tail(store, rank=0) if output else None
        if tail is not None and known:
            tail.skip()
        self._showing = Printer(console, tail, self._living)
        self._told_at = time.monotonic()
        self._line = Text("starting")
        self._progress: Progress | None = None
        self._waiting: tuple[int, Wait | None] = (0, None)

    def __enter__(self) -> Self:
        self._showing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end(_LEAVE_SECONDS)

    def end(self, timeout: float | None = None) -> None:
        """Show the rest, and remove the live line.

        Args:
            timeout: seconds to wait for this. Default: no limit.
        """
        self._showing.end(timeout)

    def tell(
        self, text: str, at: float | None = None, style: str = "", gravity: Severity = Severity.INFO
    ) -> None:
        """Print a line that stays. A colour shows its level; without colours a word does."""
        at = time.time() if at is None else at
        level = "" if say.has_colours(self._console) else say.level(gravity)
        moment = say.moment(at, day=not self._console.is_terminal)
        line = Text.assemble((moment, "dim"), "  ", level, (text, style or _STYLES[gravity]))
        self._showing.tell(line)

    def on_event(self, event: Event, before: RunState | None, state: RunState) -> None:
        if self._known > 0:
            self._known -= 1
        elif (text := sentence(event, before, state)) is not None:
            style = "bold green" if state.ended and state.outcome == "succeeded" else ""
            self.tell(text, event.at, style, severity_of(event, before, state))
        self._line = self._line_of(state)

    async def on_look(self, state: RunState, progress: Progress | None) -> None:
        self._progress = progress
        self._line = self._line_of(state)
        if not self._console.is_terminal and progress and time.monotonic() - self._told_at >= LINE_SECONDS:
            self._told_at = time.monotonic()
            self.tell(self._line.plain)

    def on_waiting(self, state: RunState, job: JobStatus) -> None:
        self._waiting = (state.attempt.number, job.wait)
        self._line = self._line_of(state)
        if (text := waiting(state, job)) is not None:
            self.tell(text)

    def on_lagging(self, state: RunState, progress: Progress, ranks: frozenset[int]) -> None:
        self.tell(straggler_sentence(progress, ranks), gravity=Severity.WARNING if ranks else Severity.INFO)

    def on_trouble(self, error: ElasticError, times: int, pause: float) -> None:
        if times & (times - 1) == 0:  # the 1st, 2nd, 4th, ... time: an outage of an hour fits on a screen
            again = f", for the {times}th time" if times > 2 else ""
            text = f"out of reach{again}: {error}; trying again in {say.duration(pause)}"
            self.tell(text, gravity=Severity.WARNING)

    def _line_of(self, state: RunState) -> Text:
        attempt, wait = self._waiting
        current = attempt == state.attempt.number
        return Text(progress_line(state, self._progress, wait if current else None))

    def _living(self) -> RenderableType:
        grid = Table.grid(padding=(0, 1))
        self._line.no_wrap, self._line.overflow = True, "ellipsis"
        grid.add_row(_SPINNER, self._line)
        return grid


_SPINNER = Spinner("dots")

#: Colours of warnings and errors.
_STYLES = {Severity.INFO: "", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}


def progress_line(state: RunState, progress: Progress | None, wait: Wait | None = None) -> str:
    """The progress of a run in one line: `running · 2 workers · step 357/3000 · step loss 0.413 · …`."""
    attempt = state.attempt
    told = progress if progress and progress.attempt == attempt.number else attempt.progress
    label = word(state, progress, wait)
    held = wait is not None and label == wait.state
    parts = [label, share(wait) if wait and held else workers(attempt.workers)]
    if told is not None and (told.attached or told.step):
        total = f"/{told.total_steps}" if told.total_steps else ""
        step = state.newest_step(told)
        if told.phases and not (phase := told.phases[-1]).complete and (phase.name or told.phases[1:]):
            parts.append(f"phase {phase.name}")
        parts.append(f"step {step}{total}")
        if told.stretches and (newest := told.stretches[-1]).is_restoring:
            parts.append(restoring(newest.restored_bytes, newest.to_restore_bytes))
        if told.total_steps:
            parts.append(f"{100 * step / told.total_steps:.0f} %")
        if told.loss is not None:
            parts.append(f"step loss {say.number(told.loss)}")
        if told.samples_per_second:
            parts.append(f"{say.number(told.samples_per_second)} samples/s")
    parts.append(f"attempt {attempt.number}")
    if state.checkpoint is not None:
        parts.append(f"checkpoint {state.checkpoint.step}")
    if wait is not None and (told_of_them := wait.reason if held else waits(wait)):
        parts.append(told_of_them)  # last: it may be longer than the line
    return " · ".join(parts)
