"""A controller in a process of its own, which outlives the shell."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.cli.find_run import silent_since
from airflow_elastic.launchers.api import BY_NAME
from airflow_elastic.spec.errors import ElasticError

if TYPE_CHECKING:
    from airflow_elastic.control.runs import Run

#: How long its first sign of life is waited for.
_START_SECONDS = 20.0


def log_path(run: Run) -> Path:
    """Where a detached controller writes: into the run's folder, or for a run on S3 into the user's home."""
    local = run.store.local_path("controller.log")
    if local is not None:
        return local
    home = Path(os.environ.get("AIRFLOW_ELASTIC_HOME", Path.home() / ".airflow-elastic"))
    return home / "controllers" / f"{hashlib.sha256(run.store.uri.encode()).hexdigest()[:16]}.log"


def detach(run: Run, *, output: bool) -> int:
    """Have another process carry the run on, in a session of its own; returns its process id.

    Raises:
        ElasticError: it ended at once, and how.
    """
    began, log = time.time(), log_path(run)
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, *BY_NAME, "airflow_elastic.cli", "run", "--uri", run.store.uri),
        "--output" if output else "--no-output",
    ]
    with log.open("ab") as file:
        start = file.tell()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        code = process.poll()
        if code is not None and not run.state.ended:
            raise ElasticError(f"the controller ended at once with exit code {code}: {_said(log, start)}")
        if code is not None or (silent_since(run.store) or 0.0) >= began:
            break
        time.sleep(0.05)
    process.returncode = 0  # it is to outlive us: nobody need be warned that it does
    return process.pid


def _said(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), f"see {log}")
