"""A worker that runs the command of another launcher, such as torchrun or accelerate, which starts the ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.job_files import Meeting, Result
from airflow_elastic.launchers import Place, find_launcher
from airflow_elastic.runtime.agent.last_save import keep_last
from airflow_elastic.runtime.agent.rendezvous import free_port, meet
from airflow_elastic.runtime.agent.reporting.evidence import (
    LAUNCHERS_LINES,
    last_lines,
    of_rank,
    values,
    without_secrets,
)
from airflow_elastic.runtime.agent.shipped_script import with_script
from airflow_elastic.runtime.agent.worker import Stopped
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from airflow_elastic.runtime.agent.worker import Worker
    from airflow_elastic.spec.status import RankError

_POLL_SECONDS = 0.05


def run_command(node: Worker) -> Result:
    """Run the worker's command to its end. Returns how it ended. Raises Stopped."""
    members, meeting, _ = meet(node)
    rank = members.nodes.index(node.index)
    port = _command_port(node, meeting, lead=rank == 0)
    spec = with_script(node)
    command = find_launcher(spec.launcher).command(
        spec, Place(node.record.python, rank, len(members.nodes), meeting.addr, port)
    )
    # For a plain script. torchrun and accelerate set their own values for each rank.
    world = {
        "PYTHONUNBUFFERED": "1",  # because not every command sets it
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(len(members.nodes)),
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": meeting.addr,
        "MASTER_PORT": str(port),
    }
    log = node.logs / layout.rank_log(node.generation, rank * spec.workers.procs)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **world, **node.environment()},
            start_new_session=True,
        )
    node.note(rank * spec.workers.procs, process.pid)
    try:
        while (code := process.poll()) is None:
            if node.stop_at is not None and node.parked():
                raise Stopped
            time.sleep(_POLL_SECONDS)
    finally:
        node.processes = {}
        _end(process, node.patience)
    if code == 0:
        keep_last(node)
        return Result("succeeded", time.time())
    return Result("failed", time.time(), errors=(_error(node, rank, code, log),))


def _command_port(node: Worker, meeting: Meeting, *, lead: bool) -> int:
    """A port for the command's own store, chosen by the lead. The port of the rendezvous is in use."""
    name = f"rendezvous/{node.generation:04d}.command.json"
    if lead:
        node.files.create(name, Meeting(meeting.addr, free_port()))
    while (found := node.files.read(name, Meeting)) is None:
        if node.files.closed:
            raise Stopped
        time.sleep(node.files.poll_seconds)
    return found.port


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    """End the command and its session: SIGTERM, then after `patience` seconds SIGKILL.

    The engine ends ranks that have sessions of their own.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(patience)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _error(node: Worker, rank: int, code: int, log: Path) -> RankError:
    """How the command failed. Evidence is what a rank has recorded; else the end of the command's output."""
    kept = node.rank_error(rank, code)
    if kept.error is not None:
        return kept
    code, tail = of_rank(code, last_lines(log, LAUNCHERS_LINES) or "")
    errors = [line.strip() for line in tail.splitlines() if "Error" in line and not line.startswith(" ")]
    raised = "Traceback (most recent call last)" in tail
    return replace(
        kept,
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        error=errors[0][:2000] if errors and raised else None,
        traceback=without_secrets(tail or None, values(node.record.spec.secrets)),
    )
