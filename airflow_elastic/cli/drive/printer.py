"""A thread that prints for `run`, so that a slow terminal or a script with much output does not delay the run."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from rich.live import Live
from rich.text import Text

from airflow_elastic.spec.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from airflow_elastic.cli.console import QuietConsole
    from airflow_elastic.cli.rank_output import Tail

#: Seconds between two looks for new output of ranks.
_LOOK_SECONDS = 0.5

#: Most lines that wait to be shown, so that a terminal that has stopped for days does not fill the memory.
_WAITING_LINES = 10_000

#: Most lines of output that a terminal gets at each look.
_TERMINAL_LINES = 400


class Printer:
    """Shows lines in their order, and the output of ranks. A terminal also has a live line at the bottom.

    Args:
        console: prints the lines.
        tail: reads the output of ranks; None to show none.
        living: renders the live line.
    """

    def __init__(
        self, console: QuietConsole, tail: Tail | None, living: Callable[[], RenderableType]
    ) -> None:
        self._console, self._tail, self._living = console, tail, living
        self._lines = deque[Text](maxlen=_WAITING_LINES)
        self._left = 0  # lines that were pushed out
        self._wake, self._last = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="showing", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def tell(self, line: Text) -> None:
        """Show a line. Does not wait while the thread is running."""
        self._left += len(self._lines) == _WAITING_LINES
        self._lines.append(line)
        self._wake.set()
        if not self._thread.is_alive():
            self._show_lines()

    def end(self, timeout: float | None = None) -> None:
        """Show the rest, and end.

        All output of ranks is shown, up to 64 MB that are not shown yet.

        Args:
            timeout: return after so many seconds in any case. Default: wait without limit.
        """
        self._last = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if not self._thread.is_alive():
            self._show_lines()

    def _work(self) -> None:
        if not self._console.is_terminal:
            self._show()
            return
        with Live(console=self._console, get_renderable=self._living, refresh_per_second=4, transient=True):
            self._show()

    def _show(self) -> None:
        last = False
        while not last:
            last = self._last
            self._show_lines()
            if self._tail is not None:
                self._show_output(self._tail, last=last)
            if not last:
                self._wake.wait(_LOOK_SECONDS)
                self._wake.clear()

    def _show_lines(self) -> None:
        if (left := self._left) and self._lines:
            self._left = 0
            self._print(Text(f"({left} lines left out here: look with `airflow-elastic events`)"))
        while self._lines:
            self._print(self._lines.popleft())

    def _show_output(self, tail: Tail, *, last: bool) -> None:
        try:
            most = _TERMINAL_LINES if self._console.is_terminal else None
            for log, lines in tail.news(last=last, live=True, most=most):
                if self._console.is_terminal:
                    prefix = (f"rank {log.rank} | ", "dim")
                    self._print(Text("\n").join(Text.assemble(prefix, line) for line in lines))
                else:
                    self._console.write("".join(f"rank {log.rank} | {line}\n" for line in lines))
        except StoreError as error:
            if last:
                self._print(Text(f"the rest of the output cannot be read: {error}"))

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)
