"""Keeps Alembic's remarks out of the logs of tasks and commands: it makes several each time the database is opened."""

from __future__ import annotations

import contextlib
import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOURCES = ("alembic.runtime.migration", "alembic.runtime.plugins")

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def _is_kept(record: logging.LogRecord) -> bool:
    return not _quiet.get() or record.levelno >= logging.WARNING


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Within it, Alembic logs only warnings. Other threads, and other users of Alembic, notice nothing."""
    for name in _SOURCES:
        logging.getLogger(name).addFilter(_is_kept)  # a second time changes nothing
    before = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(before)
