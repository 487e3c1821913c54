"""What the demo shows while it is at work: lines that stay, and below them, on a terminal, one block that lives."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from airflow_elastic.cli import console as say

#: How often a file or a pipe gets a line about the progress.
LINE_SECONDS = 5.0

_SIGNS = {"success": ("✓", "green"), "failed": ("✗", "bold red"), "upstream_failed": ("✗", "red")}


class Screen:
    """Shows lines with the time since the start."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or say.console()
        self._began = time.time()
        self._live: Live | None = None
        self._tasks: dict[str, str | None] = {}
        self._status: Mapping[str, Any] | None = None
        self._told_at = 0.0

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(
                console=self.console, get_renderable=self._block, refresh_per_second=5, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.time() - self._began

    def say(self, text: str, *, at: float | None = None, style: str = "") -> None:
        """A line that stays."""
        seconds = max(0, int((at or time.time()) - self._began))
        stamp = f"{seconds // 60}:{seconds % 60:02}"
        self.console.print(Text.assemble((f"{stamp:>5}  ", "dim"), (text, style)), soft_wrap=True)

    def tasks(self, states: Mapping[str, str | None]) -> None:
        """The states of the DAG's tasks now."""
        if self._live is None and states != self._tasks:
            self.say("tasks: " + ", ".join(f"{name} {state or 'waits'}" for name, state in states.items()))
        self._tasks = dict(states)

    def status(self, status: Mapping[str, Any]) -> None:
        """The status document of the training now."""
        if (
            self._live is None
            and status["outcome"] is None
            and time.monotonic() - self._told_at >= LINE_SECONDS
        ):
            self._told_at = time.monotonic()
            self.say(_position(status))
        self._status = status

    def _block(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._tasks:
            line = Text("       ")
            for name, state in self._tasks.items():
                sign, style = _SIGNS.get(state or "", ("…" if state else "·", "cyan" if state else "dim"))
                line.append(f"{sign} {name} ", style)
                line.append(f"{state or ''}   ", "dim")
            parts.append(line)
        if self._status is not None and self._status["outcome"] is None:
            row = Table.grid(padding=(0, 1))
            bar = ProgressBar(self._status["total_steps"] or 1, self._status["step"], width=24)
            row.add_row("      ", bar, Text(_position(self._status), no_wrap=True, overflow="ellipsis"))
            parts.append(row)
        return Group(*parts)


def _position(status: Mapping[str, Any]) -> str:
    parts = [f"world size {status['world_size']}", f"step {say.step_of(status)}"]
    if status["loss"] is not None:
        parts.append(f"loss {say.number(status['loss'])}")
    if status["samples"]["per_second"]:
        parts.append(f"{say.number(status['samples']['per_second'])} samples/s")
    parts.append(f"attempt {status['attempts'][-1]['number']}")
    if newest := status["checkpoints"]["newest"]:
        parts.append(f"checkpoint {newest['step']}")
    return " · ".join(parts)
