"""How the Airflow of tests and demos connects to its SQLite: every part of Airflow imports this.

A database that lives as long as a test need not survive the loss of power, and on a machine whose disk is
busy each fsync holds the only write lock for seconds.

The time to wait for that lock is short on purpose. The API server writes its log of actions in its event
loop (`api_fastapi/logging/decorators.py` of Airflow 3.3); where another of its own requests has the lock
then, that one cannot go on to let go of it, and the whole server stands still until this time is over.
What it answers then, "Database error", `AirflowRest` asks again.
"""

from __future__ import annotations

import sqlite3
from typing import Any


class _Unsynced(sqlite3.Connection):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA synchronous=OFF")


CONNECT_ARGS: dict[str, Any] = {"timeout": 5.0, "factory": _Unsynced}
"""For `[database] sql_alchemy_connect_args` and its `_async` sister: arguments of `sqlite3.connect`; seconds."""
