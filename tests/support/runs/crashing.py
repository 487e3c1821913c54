"""A controller that is killed at a chosen point: `python -m tests.support.runs.crashing URI POINT`.

The store and the engine are the real ones; around them goes a count of journal writes, of the decision that ranks start
cold, and of engine calls. Point 2k kills the process right before the k-th of them, point 2k+1 right after it. Prints
the last count when it is not killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import Controller, open_run
from airflow_elastic.engines import find_engine
from airflow_elastic.spec import layout


class Fuse:
    """Counts, and kills when its time has come."""

    def __init__(self, point: int) -> None:
        self.point, self.count = point, 0

    def tick(self) -> None:
        if self.count == self.point:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


class CrashingStore:
    """The real store; creations of journal entries are counted, and that of the decision that ranks start cold."""

    def __init__(self, store: Any, fuse: Fuse) -> None:
        self._store, self._fuse = store, fuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create(self, key: str, data: bytes) -> bool:
        if not key.startswith((layout.JOURNAL, layout.COLD_START)):
            return bool(self._store.create(key, data))
        self._fuse.tick()
        created = bool(self._store.create(key, data))
        self._fuse.tick()
        return created


class CrashingEngine:
    """The real engine; calls that change something are counted."""

    def __init__(self, engine: Any, fuse: Fuse) -> None:
        self._engine, self._fuse = engine, fuse

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._engine, name)
        if name not in ("submit", "rejoin", "delete", "scale", "stand_by", "close"):
            return inner

        async def counted(*args: Any) -> Any:
            self._fuse.tick()
            answer = await inner(*args)
            self._fuse.tick()
            return answer

        return counted


def main() -> None:
    uri, point = sys.argv[1], int(sys.argv[2])
    fuse = Fuse(point)
    engine = find_engine(open_run(uri).state.spec.engine)
    controller = Controller(
        CrashingStore(open_store(uri), fuse), CrashingEngine(engine, fuse), poll_seconds=0.1
    )  # type: ignore[arg-type]
    asyncio.run(controller.drive())
    print(fuse.count)


if __name__ == "__main__":
    main()
