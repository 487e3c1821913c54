"""The stacks of a worker's ranks. A rank prints them into its log when its agent asks, even if it hangs."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.spec import layout
from airflow_elastic.spec.stacks import RankStack

if TYPE_CHECKING:
    from airflow_elastic.runtime.agent.worker import Worker

#: How long a rank may take to print its stacks, and how many bytes of them are read.
SECONDS, BYTES = 3.0, 256_000

#: How many frames of a rank's main thread are reported, each with so many characters. The log has all of them.
FRAMES, LETTERS = 40, 300

_QUIET_SECONDS, _LOOK_SECONDS = 0.2, 0.05

#: The lines that `faulthandler` prints for a thread, and for a frame.
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')

#: Frames of the runtime that start the script. They are not reported.
_OURS = re.compile(
    r"/airflow_elastic/runtime/rank/(run|main_module|start_rank)\.py:|^<frozen runpy>:|/runpy\.py:"
)


def ask_ranks(node: Worker) -> list[RankStack]:
    """Make this worker's ranks print their stacks into their logs. Returns the stacks of their main threads.

    A rank without a handler for the signal is left alone, because the signal would end it. Such a rank's program is not
    Python, or does not run below `runtime.rank`. Its stack is empty.
    """
    began: dict[int, tuple[Path, int]] = {}
    processes = dict(node.processes)
    for rank, process in processes.items():
        log = node.logs / layout.rank_log(node.generation, rank)
        if log.exists() and _catches(process.pid, signal.SIGUSR1):
            began[rank] = (log, log.stat().st_size)
            process.send(signal.SIGUSR1)
    _wait([log for log, _ in began.values()])
    worker = f"node-{node.index}"
    return [
        RankStack(rank, worker, main_thread(_printed(*began[rank])) if rank in began else ())
        for rank in processes
    ]


def main_thread(printed: str) -> tuple[str, ...]:
    """The main thread in the output of `faulthandler`, innermost frame first. () if there is none."""
    threads: list[list[str]] = []
    for line in printed.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (frame := _FRAME.match(line)):
            threads[-1].append(f"{frame[1]}:{frame[2]} in {frame[3]}"[:LETTERS])
    main = threads[-1] if threads else []  # the main thread is the oldest, and the newest is printed first
    return tuple(frame for frame in main if not _OURS.search(frame))[:FRAMES]


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal. Without one, the signal would end it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _wait(logs: list[Path]) -> None:
    """Wait until no rank has printed anything for a moment, at most `SECONDS`."""
    until = time.monotonic() + SECONDS
    sizes, changed = [0] * len(logs), time.monotonic()
    while logs and time.monotonic() < min(until, changed + _QUIET_SECONDS):
        time.sleep(_LOOK_SECONDS)
        now = [log.stat().st_size for log in logs]
        if now != sizes:
            sizes, changed = now, time.monotonic()


def _printed(log: Path, since: int) -> str:
    with log.open("rb") as file:
        file.seek(since)
        return file.read(BYTES).decode(errors="replace")
