"""Settings of SQLite for the Airflow of tests and demos. Every part of Airflow imports this.

A test's database need not survive a loss of power. On a machine with a busy disk, each fsync would hold the only
write lock for seconds.

The API server waits for that lock for a short time on purpose. It writes its log of actions in its event loop
(`api_fastapi/logging/decorators.py` of Airflow 3.3). If another of its own requests has the lock, that request cannot
release it, because the event loop waits. The whole server then waits until this time is over, and answers "Database
error". `AirflowRest` repeats such a request.

All other parts wait much longer than that, as they end if the lock does not come in time. A scheduler that wants to
start a run, just triggered, does not try that a second time.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any


class _Unsynced(sqlite3.Connection):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA synchronous=OFF")


PART = "AIRFLOW_ELASTIC_STANDALONE_PART"
"""The environment variable that names a part to itself."""

_WAIT_SECONDS = 5.0 if os.environ.get(PART) == "api-server" else 30.0

CONNECT_ARGS: dict[str, Any] = {"timeout": _WAIT_SECONDS, "factory": _Unsynced}
"""For `[database] sql_alchemy_connect_args` and its `_async` sister: arguments of `sqlite3.connect`; seconds."""
