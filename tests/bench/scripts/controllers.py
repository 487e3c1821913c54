"""Many controllers in one event loop, as in one triggerer: what do they cost while their runs just go on?

`python -m tests.bench.scripts.controllers FOLDER RUNS SECONDS POLL`: prints as JSON the processor seconds used, the
bytes that the process grew by, and the floor: as many tasks that only read their run's report, as often.
"""

import asyncio
import gc
import json
import sys
import time
from pathlib import Path

from airflow_elastic.adapters.records.reports import read_progress, write_progress
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import Controller, start_run
from airflow_elastic.core.state import Phase
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.bench.scripts.report import report

ENGINE = "airflow_elastic.testing.fake_engine:FakeEngine"


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def measured(tasks: list[asyncio.Task], seconds: float) -> float:
    """Processor seconds while these tasks do what they do. The settling before is left out."""
    await asyncio.sleep(5.0)
    began = time.process_time()
    await asyncio.sleep(seconds)
    used = time.process_time() - began
    assert not any(task.done() for task in tasks), "a task ended"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return used


async def main(folder: Path, runs: int, seconds: float, poll: float) -> None:
    engine = FakeEngine()
    stores = [open_store(str(folder / f"run-{number}")) for number in range(runs)]
    spec = RunSpec(command=("train.py",), name="bench", engine=ENGINE, workers=Workers(2, procs=4))
    for store in stores:
        start_run(store, spec, engine=engine)
    await asyncio.gather(
        *(asyncio.to_thread(int) for _ in range(64))
    )  # the threads are the loop's, not a run's
    before = resident()
    controllers = [Controller(store, engine, poll_seconds=poll) for store in stores]
    tasks = []
    for controller in controllers:
        tasks.append(asyncio.create_task(controller.drive()))
        await asyncio.sleep(poll / runs)  # nobody starts them all at once
    while not all(controller.state.attempt.phase is Phase.LIVE for controller in controllers):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    for store in stores:
        write_progress(store, report(1))
    used = await measured(tasks, seconds)
    grown = resident() - before

    async def look(number: int) -> None:
        await asyncio.sleep(poll * number / runs)
        while True:
            await asyncio.to_thread(read_progress, stores[number], 1)
            await asyncio.sleep(poll)

    floor = await measured([asyncio.create_task(look(number)) for number in range(runs)], seconds)
    print(json.dumps({"used": used, "floor": floor, "grown": grown}))


asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
