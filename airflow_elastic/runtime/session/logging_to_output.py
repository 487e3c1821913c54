"""What the runtime has to say, in a rank's output."""

from __future__ import annotations

import logging
import sys

_NAME = "airflow_elastic"


class _UntilConfigured(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr as long as the script has set up no logging of its own, which then gets it all."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def log_to_output() -> None:
    """Have a rank's output tell what the runtime does, from INFO on: where it restores from, and what it leaves out.

    Where the script has set up its logging before, that is left as it is.
    """
    logger = logging.getLogger(_NAME)
    if logging.getLogger().handlers or logger.handlers or logger.level != logging.NOTSET:
        return
    handler = _UntilConfigured(sys.stderr)
    handler.setFormatter(logging.Formatter("airflow-elastic: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
