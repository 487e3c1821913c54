"""`torch.compile` in forked ranks: the same values as under plain torchrun, also where compile workers are used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.host.processes import Process
from airflow_elastic.spec.run import RestartPolicy, Workers
from tests.support.driving import SCRIPTS, driving, left_over, training
from tests.support.machine.patience import PATIENCE_SECONDS

SCRIPT = str(SCRIPTS / "parity/compiled.py")

WORKERS = 3


def compiling(cache: Path) -> dict[str, str]:
    """What a process needs in its environment to compile with so many workers, and find nothing compiled."""
    return {
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": str(WORKERS),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
    }


def plainly(folder: Path) -> dict[str, Any]:
    """What the script tells under plain torchrun."""
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    environment = {**os.environ, **compiling(folder / "cache")}
    subprocess.run(
        [*command, SCRIPT, str(folder)],
        check=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        env=environment,
    )
    return told(folder, 0)


def told(folder: Path, attempt: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{attempt}.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.real_start
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="needs a C++ compiler")
async def test_a_forked_rank_compiles_as_a_plain_one(tmp_path: Path) -> None:
    """A rank that is killed leaves no compile workers. The next one goes on with what has been compiled."""
    plain = plainly(tmp_path / "plain")
    (ours := tmp_path / "ours").mkdir()
    spec = training(
        command=(SCRIPT, str(ours), "--die-first"),
        workers=Workers(1),
        env=compiling(ours / "cache"),
        restart=RestartPolicy(backoff_limit=1, backoff_seconds=0.1),
    )
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    assert left_over(tmp_path / "run") == []
    killed, restarted = (told(ours, attempt) for attempt in range(2))
    for one in (plain, killed, restarted):
        assert len(one["workers"]) == WORKERS + 1, "and the process that has forked them"
    workers = [Process(*one) for one in killed["workers"] + restarted["workers"]]
    assert [one for one in workers if one.alive] == []
    assert (plain["forked"], killed["forked"], restarted["forked"]) == (False, True, True)
    assert killed["values"] == restarted["values"] == plain["values"]
    assert killed["kernels"] == plain["kernels"] > 0
