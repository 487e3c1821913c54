"""Log lines of the runtime in a rank's output."""

from __future__ import annotations

import logging
import sys

_NAME = "airflow_elastic"


class _UntilConfigured(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr until the script sets up its own logging, which gets the log lines then."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def log_to_output() -> None:
    """Write the runtime's log lines to a rank's output, from INFO on: where it restores from, what it skips, and so on.

    If the script has set up its own logging before, this does nothing.
    """
    logger = logging.getLogger(_NAME)
    if logging.getLogger().handlers or logger.handlers or logger.level != logging.NOTSET:
        return
    handler = _UntilConfigured(sys.stderr)
    handler.setFormatter(logging.Formatter("airflow-elastic: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
