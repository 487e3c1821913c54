"""Output of the command line: consoles, and how it writes times, sizes and names of users."""

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
from rich.text import Text

from airflow_elastic.core.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Width in characters of tables in a file or a pipe, where there is no terminal.
_PIPE_WIDTH = 180


class QuietConsole(Console):
    """A console that drops output which cannot be written (closed pipe, full disk), so that the command goes on."""

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError:  # e.g. a log on a full disk: only this output is lost
            self._buffer.clear()

    def write(self, text: str) -> None:
        """Write whole lines without rich, which is many times as fast. Not for a terminal with a live line."""
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
    """A console that prints text as it is: no markup, no highlighting."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return QuietConsole(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def print_json(document: Any, *, line: bool = False) -> None:
    """Write a document to standard output; on one line if `line` is True."""
    sys.stdout.write(json.dumps(document, indent=None if line else 2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def asker() -> str:
    """`user@host` of the person who asks, for the run's journal."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def plain(text: str) -> Text:
    """Text of scripts and users without the characters that would steer the terminal."""
    return Text("".join(letter if letter.isprintable() else " " for letter in text))


def moment(at: float, *, day: bool = True) -> str:
    """A moment in this machine's time zone; with `day`, also the date and the zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S%z" if day else "%H:%M:%S", time.localtime(at))


def has_colours(console: Console) -> bool:
    """Whether the console is a terminal that shows colours; False with `NO_COLOR` or `TERM=dumb`."""
    return console.is_terminal and console.color_system is not None and not console.no_color


def level(gravity: Severity) -> str:
    """Prefix of a warning or an error on a console without colours; empty for other lines."""
    return "" if gravity is Severity.INFO else f"{gravity}  "


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


def number(value: float) -> str:
    """A number with four significant digits; from 1000 on without decimals, in groups of three digits."""
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1000 else f"{value:.4g}"


def carry_on(uri: str) -> str:
    """The command that goes on with a run."""
    return f"airflow-elastic run --uri {shlex.quote(uri)}"


def command(name: str, uri: str) -> str:
    """Another command for the run, ready to copy."""
    return f"airflow-elastic {name} {shlex.quote(uri)}"


def step_of(document: Mapping[str, Any]) -> str:
    """`357/3000`, or `357` if the script has not given its number of steps."""
    step, total = document["step"], document["total_steps"]
    return f"{step}/{total}" if total else f"{step}"
