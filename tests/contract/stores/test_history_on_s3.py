"""The history of a run on S3: at most one write a minute, and the same as in a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from airflow_elastic.adapters.records.history import CONTROLLER, TRAINING, HistoryWriter, read_history
from airflow_elastic.adapters.storage.s3.store import S3Store
from tests.support import s3

START = 1_790_000_040.0


def test_a_run_on_s3_writes_at_most_once_a_minute(
    s3_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both writers together for three hours, in which two are folded; with the clock of the test."""
    calls: Counter[str] = Counter()

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return call(*args, **options)

        return counting

    for name in ("get", "put", "create", "list", "delete"):
        monkeypatch.setattr(S3Store, name, counted(name, getattr(S3Store, name)))
    store, now = s3_server.store(), [START]
    writers = {
        TRAINING: HistoryWriter(store, TRAINING, attempt=1, now=lambda: now[0]),
        CONTROLLER: HistoryWriter(store, CONTROLLER, now=lambda: now[0]),
    }
    minutes = 180
    for second in range(0, minutes * 60, 15):
        now[0] = START + second
        for source, writer in writers.items():
            writer.add(now[0], {f"{source}.step": second // 15, "attempt": 1})
            writer.tend()
    assert calls["put"] + calls["create"] <= minutes
    assert calls.total() <= minutes, calls
    for writer in writers.values():
        writer.flush()
    history = read_history(store, now[0])
    for source in writers:
        column = getattr(history, source).table.columns[f"{source}.step"]
        assert (sum(column.count), min(column.min), max(column.max)) == (minutes * 4, 0.0, minutes * 4 - 1.0)
    archives = [entry.key for entry in store.list("history/") if "archive" in entry.key]
    assert any(key.startswith("history/training/") for key in archives)
    store.delete(entry.key for entry in store.list())
