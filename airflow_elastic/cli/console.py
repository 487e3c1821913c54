"""How the command line speaks: consoles, moments and durations, who is asking."""

from __future__ import annotations

import getpass
import json
import os
import shlex
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console

from airflow_elastic.core.severity import Gravity

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A table that goes into a file or a pipe has no terminal whose width it could take.
_PIPE_WIDTH = 180


class QuietConsole(Console):
    """Goes silent when its reader has gone away, or it has no room to write to; what the command does goes on."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich's."""
        try:
            super().print(*objects, **options)
        except OSError:  # e.g. a log on a full disk: this is lost, and what comes later need not be
            self._buffer.clear()

    def write(self, text: str) -> None:
        """Text as it is, in whole lines: many times as fast. Not where something lives below."""
        if self.quiet:
            return
        try:
            self.file.write(text)
            self.file.flush()
        except BrokenPipeError:
            self.on_broken_pipe()
        except OSError:
            pass  # as above

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def console(*, stderr: bool = False) -> QuietConsole:
    """A console that prints what it is given: no markup, no guessing at numbers."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return QuietConsole(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def print_json(document: Any, *, line: bool = False) -> None:
    """Write a document to standard output; with `line`, on one line."""
    sys.stdout.write(json.dumps(document, indent=None if line else 2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def asker() -> str:
    """Who asks, as the record of the run will show it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def moment(at: float, *, day: bool = True) -> str:
    """A moment in this machine's time zone; with the zone where it stands alone in a file."""
    return time.strftime("%Y-%m-%d %H:%M:%S%z" if day else "%H:%M:%S", time.localtime(at))


def has_colours(console: Console) -> bool:
    """Whether the console is a terminal that shows colours: not with `NO_COLOR`, nor with `TERM=dumb`."""
    return console.is_terminal and console.color_system is not None and not console.no_color


def level(gravity: Gravity) -> str:
    """What precedes a grave line where there are no colours; nothing before any other one."""
    return "" if gravity is Gravity.INFO else f"{gravity}  "


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `2 m 14 s`, `3 h 05 m`, `2 d 04 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} m"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"


def size(count: float) -> str:
    """Bytes, in the unit that makes them readable."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def number(value: float) -> str:
    """A figure as one says it: four digits are plenty."""
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1000 else f"{value:.4g}"


def carry_on(uri: str) -> str:
    """The command that carries a run on."""
    return f"airflow-elastic run --uri {shlex.quote(uri)}"


def command(name: str, uri: str) -> str:
    """Another command about the run, ready to be copied."""
    return f"airflow-elastic {name} {shlex.quote(uri)}"


def step_of(document: Mapping[str, Any]) -> str:
    """`357/3000`, or `357` where the script did not say where it means to end."""
    step, total = document["step"], document["total_steps"]
    return f"{step}/{total}" if total else f"{step}"
