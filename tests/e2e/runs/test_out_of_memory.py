"""A rank that the kernel kills for memory is told from one that somebody kills: by the control group's own count."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import start_run
from airflow_elastic.core.state import FailureKind
from airflow_elastic.spec.run import RunSpec, Workers
from tests.support.driving import SCRIPTS, left_over
from tests.support.machine.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[3]
LIMIT_BYTES = 2 << 30


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """A control group that holds 2 GiB. Entered by writing a process id into the file that is returned."""
    for root, limit, extra in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", None),
        ("/sys/fs/cgroup", "memory.max", "memory.swap.max"),
    ):
        group = Path(root) / f"elastic-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(LIMIT_BYTES))
        except OSError:
            if group.is_dir():
                group.rmdir()
            continue
        if extra is not None and (group / extra).exists():
            (group / extra).write_text("0")
        yield group / "cgroup.procs"
        _remove(group)
        return
    pytest.skip(
        "needs the right to make a memory control group: run as root, outside of a restricted container"
    )


def _remove(group: Path) -> None:
    """It is busy until the last process that was killed in it is gone."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            group.rmdir()
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_the_kernels_kill_is_told_from_a_persons(little_memory: Path, tmp_path: Path) -> None:
    spec = RunSpec(command=(str(SCRIPTS / "faults/eat.py"),), launcher="python", workers=Workers(2))
    run = start_run(open_store(str(tmp_path)), spec)
    enter = (
        "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()));"
        "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
    )
    drive = ["-m", "tests.support.runs.crashing", str(tmp_path), "10000"]
    command = [sys.executable, "-c", enter, str(little_memory), *drive]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    state = run.state
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    failure = state.attempts[0].failure
    assert failure is not None
    assert (failure.kind, failure.worker, failure.exit_code) == (FailureKind.OUT_OF_MEMORY, "node-1", 137)
    limit = f"limit {LIMIT_BYTES / 2**20:.0f} MiB"
    assert failure.reason == f"rank 1 on node-1 was killed by the kernel because memory ran out ({limit})"
    assert left_over(tmp_path) == []
