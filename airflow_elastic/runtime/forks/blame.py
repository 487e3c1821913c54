"""Which failures of ranks a fork may have caused.

Some libraries must be imported before torch, or use a device as soon as they are imported. That works in a plain
process, and not in a fork of one that has imported torch. Such a rank crashes, or raises an error with known words,
before its first step.
"""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host import shared_page

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_elastic.spec.status import RankError

#: A rank that does not report its steps counts as one without a step for so long.
SOON_SECONDS = 300.0

_CRASHES = frozenset({signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV})

#: Of torch; of CUDA in a child of a process that has used it; and of the C library. That one has no room left for the
#: thread-local variables of a library that is loaded after many others.
_WORDS = re.compile(
    r"Cannot re-initialize \w+ in forked subprocess"
    r"|CUDA error: initialization error"
    r"|cannot allocate memory in static TLS block"
)


def may_be_of_fork(error: RankError, page: Path, began: float) -> bool:
    """Whether the fork may be why a forked rank failed.

    Args:
        error: how it failed.
        page: its page, if its script uses our runtime.
        began: when it was forked, on the monotonic clock.
    """
    text = f"{error.error or ''}\n{error.traceback or ''}"
    if error.signal not in _CRASHES and not _WORDS.search(text):
        return False
    words = shared_page.read_words(page)
    if words is None:
        return time.monotonic() - began < SOON_SECONDS
    return not words[shared_page.FIRST_STEP_AT]
