"""A training without torch: counts steps, commits real checkpoints, goes on from the newest.

With --die its last rank dies once; with --die-agent its agent dies with it, as soon as a third worker stands by. With
--signs FOLDER that rank dies in attempt N when FOLDER/die-N is there, and it counts on, without end, until
FOLDER/enough is. It writes a line to trace.jsonl with every step, so that a test can see which attempts lived when: see
`tests.support.runs.traces`.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

from airflow_elastic.adapters.records import checkpoints, checksums
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.manifest import Manifest, StoredFile

TOTAL, EVERY, DIES_AT = 24, 5, 12
parser = argparse.ArgumentParser()
parser.add_argument("--die", action="store_true")
parser.add_argument("--die-agent", action="store_true")
parser.add_argument("--signs", type=Path)
parser.add_argument("--step-seconds", type=float, default=0.02)
options = parser.parse_args()

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
attempt = int(os.environ["AIRFLOW_ELASTIC_ATTEMPT"])
store = open_store(os.environ["AIRFLOW_ELASTIC_RUN_URI"])
step = max([0, *checkpoints.steps(store)])


def trace(what: str) -> None:
    line = {"at": time.time(), "attempt": attempt, "rank": rank, "world": world, "step": step, "what": what}
    descriptor = os.open(Path(store.uri) / "trace.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, json.dumps(line).encode() + b"\n")
    os.close(descriptor)


def sign(name: str) -> bool:
    return options.signs is not None and (options.signs / name).exists()


def commit() -> None:
    data = layout.checkpoint_data(step, attempt, 1)
    store.put(f"{data}state", str(step).encode())
    path = store.local_path(f"{data}state")
    files = (
        StoredFile(
            f"{data}state", path.stat().st_size, {checksums.ALGORITHM: checksums.of(path.read_bytes())}
        ),
    )
    manifest = Manifest(step, attempt, 1, world, time.time(), data, files, format="text")
    checkpoints.commit(store, manifest)


trace("start")
while step < TOTAL or (options.signs and not sign("enough")):
    time.sleep(options.step_seconds)
    step += 1
    trace("step")
    if rank == 0 and step % EVERY == 0:
        commit()
    # Ranks do not meet: one that starts late begins from what the first has committed, which may be past that step.
    dies = sign(f"die-{attempt}") or (options.die and attempt == 1 and step >= DIES_AT)
    if options.die_agent and attempt == 1 and step >= DIES_AT and rank == world - 1:
        while not list(Path(store.uri).glob("local/*/node-2/agent.json")):
            time.sleep(0.02)
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    if dies and rank == world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
trace("end")
