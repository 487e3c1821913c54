"""Letting processes of an Airflow stand still, without what they hold."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterable

from airflow_elastic.testing import processes
from airflow_elastic.testing.standalone import Standalone


def stand_still(airflow: Standalone, victims: Iterable[processes.Process]) -> None:
    """SIGSTOP. None of them has the write lock of the SQLite database then: all others would wait for it."""
    with sqlite3.connect(airflow.home / "airflow.db", timeout=60) as database:
        database.execute("BEGIN IMMEDIATE")
        for victim in victims:
            processes.send(victim, signal.SIGSTOP)
        database.rollback()
