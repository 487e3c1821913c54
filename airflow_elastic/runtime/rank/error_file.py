"""A rank writes down the exception that ends the script, as JSON beside its page. `evidence` reads it."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import sys
import time
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

_LONGEST_TRACE, _LONGEST_LINE = 20_000, 2_000


class ErrorFile:
    """Records the exception that ends the script, whatever the script has changed before.

    It is made before the script begins, because a script may change its folder, environment and streams, and may fork.

    Args:
        ours: files whose frames led to the script, and are not shown.
    """

    def __init__(self, ours: Collection[str]) -> None:
        prefix, rank = os.environ.get("AIRFLOW_ELASTIC_RANK_FILES"), os.environ.get("RANK")
        self._path = os.path.abspath(f"{prefix}-rank-{rank}.error.json") if prefix and rank else None
        self._ours, self._pid = ours, os.getpid()

    def keep(self, error: BaseException) -> None:
        """Write down the exception, and make Python print it without the frames that led to the script."""
        if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
            return  # the exit code says it all
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in self._ours:
            trace = trace.tb_next
        if os.getpid() == self._pid:  # and not in a fork that the script has made
            self.write(_line(error), _told(error, trace))
        if not isinstance(error, SystemExit):
            _print_only(trace)

    def write(self, error: str, trace: str | None = None) -> None:
        """Write down an error as one line, and its traceback."""
        # A rank that stays in `run.train` has files of another generation then.
        link = sys.modules.get("airflow_elastic.runtime.staying.agent_link")
        path = next(reversed(getattr(link, "error_paths", [])), self._path)
        if path is None:
            return
        try:
            with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
                json.dump({"error": error, "traceback": trace, "at": time.time()}, file)
        except OSError as full:  # the script's own error is the more important one
            with contextlib.suppress(Exception):
                sys.stderr.write(f"the error could not be written down: {full}\n")


def _told(error: BaseException, trace: TracebackType | None) -> str | None:
    """The traceback as Python prints it; None where even that fails."""
    try:
        linecache.checkcache()
        return "".join(traceback.format_exception(type(error), error, trace))[-_LONGEST_TRACE:]
    except Exception:  # from the script's `__str__` or `__repr__`, or there is no memory
        return None


def _line(error: BaseException) -> str:
    """The error in one line. From a loader's worker, it is the error that this has caught."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be shown"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Caught ") and " worker process " in lines[0]:
        return lines[-1][:_LONGEST_LINE]
    return f"{type(error).__name__}: {' '.join(lines)}"[:_LONGEST_LINE]


def _print_only(trace: TracebackType | None) -> None:
    """Make Python print only these frames, with any hook that the script has set."""
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        return

    def print_(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
        sys.excepthook = hook
        sys.last_traceback = trace
        hook(kind, error.with_traceback(trace), trace)

    sys.excepthook = print_
