"""Start a controller in a process of its own, which goes on after the shell has ended."""

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

#: Seconds to wait until the controller first writes the status document.
_START_SECONDS = 20.0


def log_path(run: Run) -> Path:
    """The log file of a detached controller: in the run's folder, or in the user's home for a run on S3."""
    local = run.store.local_path("controller.log")
    if local is not None:
        return local
    home = Path(os.environ.get("AIRFLOW_ELASTIC_HOME", Path.home() / ".airflow-elastic"))
    return home / "controllers" / f"{hashlib.sha256(run.store.uri.encode()).hexdigest()[:16]}.log"


def detach(run: Run, *, output: bool) -> int:
    """Start a process that drives the run, in a session of its own. Returns its process id.

    Raises:
        ElasticError: the process ended at once; the message has its last line of output.
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
    process.returncode = 0  # no ResourceWarning that it is still running
    return process.pid


def _said(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), f"see {log}")
