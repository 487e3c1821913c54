"""Where the script failed: the line of its own code in a traceback."""

from __future__ import annotations

import re

from airflow_elastic.core.health.stack_comparison import LIBRARY

_FRAME = re.compile(r'File "(?P<path>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<name>[^\n]+))?')

#: Each exception in a chain begins with it. The last one ended the rank.
_BEGINNING = "Traceback (most recent call last)"


def failing_line(traceback: str | None) -> str | None:
    """The innermost place in the script's own code: `train.py:37 in check`; in a library, if there is none.

    None where the text has no frame.
    """
    frames = list(_FRAME.finditer((traceback or "").rpartition(_BEGINNING)[2]))
    if not frames:
        return None
    own = next((one for one in reversed(frames) if not LIBRARY.search(one["path"])), frames[-1])
    name = (own["name"] or "").strip()
    function = f" in {name}" if name and name != "<module>" else ""
    return f"{own['path'].rpartition('/')[2]}:{own['line']}{function}"


def with_line(reason: str, error: str | None, traceback: str | None) -> str:
    """A reason with the line before its error: `rank 1 on node-1 failed at train.py:37 in check: ValueError: bad`."""
    place = failing_line(traceback)
    if place is None or not error or f" failed: {error}" not in reason:
        return reason
    return reason.replace(f" failed: {error}", f" failed at {place}: {error}", 1)
