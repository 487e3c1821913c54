"""Many sensors of a few runs in one event loop, as in one triggerer: what does it cost while nothing happens?

`python -m tests.bench.scripts.sensors ROOT RUNS SENSORS SECONDS POLL`: prints as JSON the share of a processor in each
fifth of that time, the bytes that the process grew by and has, its requests to storage by kind, and the seconds.
"""

import asyncio
import contextlib
import gc
import json
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.core.conditions import HasCheckpoint, Reached, Unhealthy, to_plain
from airflow_elastic.spec import layout
from airflow_elastic.triggers.condition import ElasticRunConditionTrigger

PARTS = 5
SETTLE_SECONDS = 5.0
CONDITIONS = (
    Reached(step=10**9),
    HasCheckpoint(metric="val_loss < 0.0001"),
    Unhealthy(straggler=True, no_progress=1e8, restarts=10**6),
)


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def count_requests() -> Counter[str]:
    """From now on, requests of all stores in this process by their method and kind of key."""
    found: Counter[str] = Counter()
    for name in ("get", "list", "folders", "read_from"):
        setattr(FolderStore, name, counted(name, getattr(FolderStore, name), found))
    return found


def counted(name: str, method: Any, found: Counter[str]) -> Any:
    """The same method, each call counted."""

    def call(self: Any, key: str = "", *more: Any, **named: Any) -> Any:
        found[f"{name} {'status' if key == layout.STATUS else key.partition('/')[0]}"] += 1
        return method(self, key, *more, **named)

    return call


async def main(root: Path, runs: int, sensors: int, seconds: float, poll: float) -> dict[str, Any]:
    """Follow the runs."""
    requests = count_requests()
    before = resident()
    triggers = [
        ElasticRunConditionTrigger(
            str(root / f"run-{number % runs}"), to_plain(CONDITIONS[number % 3]), poll_seconds=poll
        )
        for number in range(sensors)
    ]

    async def follow(trigger: ElasticRunConditionTrigger) -> None:
        async for event in trigger.run():
            raise AssertionError(f"it has fired: {event.payload}")

    tasks = [asyncio.create_task(follow(one)) for one in triggers]
    await asyncio.sleep(SETTLE_SECONDS + poll)
    requests.clear()
    shares, began = [], time.monotonic()
    for _ in range(PARTS):
        used, since = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds / PARTS)
        shares.append((time.process_time() - used) / (time.monotonic() - since))
    lasted = time.monotonic() - began
    failed = [task.exception() for task in tasks if task.done()]
    assert not failed, failed[0]
    now = resident()
    found = {"cpu": shares, "grown": now - before, "resident": now, "seconds": lasted}
    found["requests"] = dict(requests)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


if __name__ == "__main__":
    root, runs, sensors, seconds, poll = sys.argv[1:]
    print(json.dumps(asyncio.run(main(Path(root), int(runs), int(sensors), float(seconds), float(poll)))))
