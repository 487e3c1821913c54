"""Watches the workers of a local job: their pidfds say when one ends, their files say how."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host import processes
from airflow_elastic.spec.status import JobStatus, WorkerPhase, WorkerStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from airflow_elastic.adapters.records.job_files import JobFiles, Result

_PHASES = {
    "succeeded": WorkerPhase.SUCCEEDED,
    "failed": WorkerPhase.FAILED,
    "left": WorkerPhase.LEFT,
    "stopped": WorkerPhase.LEFT,
    "unattended": WorkerPhase.FAILED,
}

#: The interval for files without a pidfd, in seconds: workers and generations that have not begun.
_STARTING_SECONDS, _QUIET_SECONDS = 0.1, 1.0


async def watch(files: JobFiles, ensure_host: Callable[[], None]) -> AsyncIterator[JobStatus]:
    """Yield a snapshot at once and after each change, until every worker has ended."""
    changed = asyncio.Event()
    pidfds: dict[int, int] = {}
    loop = asyncio.get_running_loop()
    last: JobStatus | None = None
    news = _open_news(files)
    if news is not None:
        loop.add_reader(news, _hear, news, changed)
    try:
        while True:
            version = _version(files)
            status = await asyncio.to_thread(read, files)
            _follow(files, status, pidfds, changed, loop)
            if status != last:
                last = status
                yield status
            phases = status.phases()
            starting = WorkerPhase.PENDING in phases | {w.phase for w in status.standby_workers}
            if phases and not phases & {WorkerPhase.PENDING, WorkerPhase.RUNNING}:
                return
            if starting:
                await asyncio.to_thread(ensure_host)
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_STARTING_SECONDS if starting else _QUIET_SECONDS):
                        await changed.wait()
                if starting or changed.is_set() or _version(files) != version:
                    break
            changed.clear()
    finally:
        if news is not None:
            loop.remove_reader(news)
            os.close(news)
        for descriptor in pidfds.values():
            loop.remove_reader(descriptor)
            os.close(descriptor)


def _open_news(files: JobFiles) -> int | None:
    """The pipe by which agents wake us. Another watcher may read it instead, so we also look now and then."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(files.news, 0o600)
        return os.open(files.news, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # the job was removed, or its file system has no pipes
        return None


def _hear(news: int, changed: asyncio.Event) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(news, 4096)
    changed.set()


def _version(files: JobFiles) -> tuple[int, ...]:
    """Changes with everything that no pidfd shows: a new generation, failed ranks, workers that only copy logs, and
    the removal of the job.

    To read all files each time instead would slow training down, if all processors are in use.
    """
    newest = files.newest_members()
    try:
        changed = [(files.folder / name).stat().st_mtime_ns for name in ("members", "job.json")]
    except OSError:
        return ()
    with contextlib.suppress(OSError):
        changed.append((files.folder / "standby.json").stat().st_mtime_ns)
    nodes = newest.nodes if newest else ()
    standing = (files.stands_by(index, newest.generation) for index in nodes) if newest else ()
    return (*changed, *standing, *map(files.has_ended, nodes))


def read(files: JobFiles) -> JobStatus:
    """The workers as they are now."""
    record, newest = files.record, files.newest_members()
    if record is None or newest is None or not (files.folder / "job.json").exists():
        # It was submitted, because it is watched. So somebody has removed its folder, and nobody can control it any
        # more.
        return JobStatus((WorkerStatus("job", WorkerPhase.LOST, reason=f"{files.folder} has been removed"),))
    same_boot = record.machine == processes.this_machine()
    standby = files.standby()
    idle = tuple(_worker(files, node, True, same_boot) for node in standby.nodes)
    apart, wanted = {*standby.nodes, *standby.lost}, set(newest.nodes)
    workers = [_worker(files, node, node in wanted, same_boot) for node in files.nodes() if node not in apart]
    if record.standby:
        workers = [_standing(files, newest.generation, worker, same_boot) for worker in workers]
    return JobStatus(tuple(workers), standby_workers=idle)


def _standing(files: JobFiles, generation: int, worker: WorkerStatus, same_boot: bool) -> WorkerStatus:
    if worker.phase is WorkerPhase.LOST:
        return replace(worker, replaceable=same_boot)
    running = worker.phase is WorkerPhase.RUNNING
    return replace(worker, standby=True) if running and files.stands_by(worker.index, generation) else worker


def _worker(files: JobFiles, node: int, wanted: bool, same_boot: bool) -> WorkerStatus:
    name = f"node-{node}"
    agent = files.agent(node)
    # Check for life before the result: an agent that ends in between has then written its result. An agent that only
    # copies logs has ended, because decisions must not wait for output.
    alive = agent is not None and same_boot and agent.alive and not files.has_ended(node)
    result = files.result(node)
    if result is not None and not alive:
        # By somebody who wants its machine or its memory.
        return _ended(name, agent, result, taken=result.outcome == "stopped" and wanted and not files.closed)
    if alive and agent is not None:
        return WorkerStatus(name, WorkerPhase.RUNNING, pid=agent.pid)
    if not wanted:
        return WorkerStatus(name, WorkerPhase.LEFT, reason="another one has its place, or nobody has")
    if not same_boot:
        return WorkerStatus(name, WorkerPhase.LOST, reason="the machine was restarted")
    if agent is None:
        return WorkerStatus(name, WorkerPhase.PENDING)
    return WorkerStatus(
        name, WorkerPhase.LOST, pid=agent.pid, reason=f"its agent, process {agent.pid}, was killed"
    )


def _ended(name: str, agent: processes.Process | None, result: Result, *, taken: bool) -> WorkerStatus:
    pid = agent.pid if agent else None
    return WorkerStatus(
        name,
        WorkerPhase.LOST if taken else _PHASES[result.outcome],
        pid=pid,
        errors=result.errors,
        reason=result.reason,
        unattended=result.outcome == "unattended",
        preempted=taken,
    )


def _follow(
    files: JobFiles,
    status: JobStatus,
    pidfds: dict[int, int],
    changed: asyncio.Event,
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Hold a pidfd of every running agent, and no other."""
    all_workers = (*status.workers, *status.standby_workers)
    running = {w.pid for w in all_workers if w.phase is WorkerPhase.RUNNING and w.pid is not None}
    for pid in pidfds.keys() - running:
        loop.remove_reader(pidfds[pid])
        os.close(pidfds.pop(pid))
    for node in files.nodes():
        agent = files.agent(node)
        if agent is not None and agent.pid in running and agent.pid not in pidfds:
            descriptor = agent.open()
            if descriptor is None:
                changed.set()  # it has just ended
            else:
                pidfds[agent.pid] = descriptor
                loop.add_reader(descriptor, changed.set)
