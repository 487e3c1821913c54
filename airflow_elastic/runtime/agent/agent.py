"""The agent of one worker: registers, runs its ranks, and records how that ended.

On SIGTERM its ranks save and end. It runs in a process of its own, which the node host forks. An agent that ends
without a result was killed: its node is lost, and its script is not to blame.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host.processes import Process
from airflow_elastic.adapters.records.job_files import JobFiles, Result
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.launchers import find_launcher
from airflow_elastic.runtime.agent.command_worker import run_command
from airflow_elastic.runtime.agent.elastic_worker import run_elastic
from airflow_elastic.runtime.agent.fork_server import ForkServer
from airflow_elastic.runtime.agent.reporting.channels import FolderChannel
from airflow_elastic.runtime.agent.reporting.log_copies import LogCopies
from airflow_elastic.runtime.agent.reporting.reporter import Reporter
from airflow_elastic.runtime.agent.worker import LOCALHOST, Stopped, Worker
from airflow_elastic.runtime.tiers.disk.copies import WorkerDisk
from airflow_elastic.runtime.tiers.disk.writer import DiskWriter
from airflow_elastic.runtime.tiers.follower import Follower
from airflow_elastic.runtime.tiers.peers.buddy_memory import BuddyMemory
from airflow_elastic.runtime.tiers.peers.buddy_sender import BuddySender
from airflow_elastic.runtime.tiers.peers.peer_server import PeerServer
from airflow_elastic.runtime.tiers.storage.writer import StorageWriter
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import ElasticError
from airflow_elastic.spec.status import RankError

if TYPE_CHECKING:
    from types import FrameType

    from airflow_elastic.runtime.forks.server import Server


def run_agent(files: JobFiles, index: int, inherited: Server | None = None) -> None:
    """Run the agent of the local engine's worker `index`, unless it had an agent already or the job is closed.

    Args:
        files: the job's folder.
        index: number of the worker.
        inherited: a fork server that was forked with this process, if there is one.
    """
    record = files.record
    me = Process.of(os.getpid())
    if record is None or me is None or not files.create(f"node-{index}/agent.json", me) or files.closed:
        return
    _log_to(files, index)
    node = Worker(files, record, index, open_store(record.run_uri))
    server = ForkServer(node, inherited)
    server.begin()
    reporter = Reporter(node, FolderChannel(node))
    write = partial(files.write, f"node-{index}/result.json")
    run_worker(node, server, reporter, write, partial(files.end, index))


def run_worker(
    node: Worker,
    server: ForkServer,
    reporter: Reporter,
    write: Callable[[Result], None],
    ended: Callable[[], None] = lambda: None,
) -> None:
    """Run a worker's ranks to their end.

    Args:
        node: the worker.
        server: forks its ranks; begun. This function ends it.
        reporter: reports progress, and receives orders.
        write: records the result. Called before anything else ends: when this process is gone, the result is there.
        ended: called when only logs are left to copy, if there are any.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        node.stop()

    followers: list[Follower] = []

    def news() -> None:
        for one in followers:
            one.news()

    persister = StorageWriter(node, news)
    copies = LogCopies(node)
    node.persist, node.keep_logs = persister.flush, copies.note
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN: ranks would inherit that
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell's job in the background ignores it
    result = Result("failed", time.time(), reason="the agent failed: see its log")
    try:
        spec = node.record.spec
        if spec.working_dir:
            os.chdir(spec.working_dir)
        reporter.start()
        copies.start()
        followers += _followers(node)
        persister.start()
        for one in followers:
            one.start()
        elastic = find_launcher(spec.launcher).elastic
        result = run_elastic(node, server, reporter.now) if elastic else run_command(node)
        result = _with_checkpoint(result, persister)
    except Stopped:
        node.flush()
        result = Result("stopped", time.time(), reason="told to end")
        if node.unattended:
            result = Result("unattended", time.time(), reason=node.unattended)
    except Exception as error:
        traceback.print_exc()
        result = _failed(node.files, node.index, error)
    finally:
        write(result)
        copies.end()
        try:
            server.end()
            reporter.stop()
            persister.stop()
            for one in followers:
                one.finish(partial(_flushed, persister), done=result.outcome in ("succeeded", "left"))
            if copies.busy:
                ended()
        finally:
            copies.stop()


def _flushed(persister: StorageWriter) -> bool:
    """Write every staged state. Returns whether that succeeded: if not, a neighbour may still write it."""
    try:
        persister.flush()
    except ElasticError:
        return False
    return True


def _followers(node: Worker) -> list[Follower]:
    """The threads that copy states to the other tiers: to the neighbour's memory, and to the disk of this machine.

    With neighbours, each agent also serves the states in its memory to ranks of other workers.
    """
    spec, found = node.record.spec, list[Follower]()
    if spec.checkpoint.buddies:
        node.keeper = BuddyMemory(node.address, spec.workers.procs)
        node.lender = PeerServer(node) if _is_far(node) else None
        found.append(BuddySender(node))
    if spec.checkpoint.disk is not None:
        folder, keep = spec.checkpoint.disk, spec.checkpoint.disk_keep_last
        node.disk = WorkerDisk.of_run(folder, node.store, node.index, keep, node.pages)
        found.append(DiskWriter(node, node.disk))
    return found


def _is_far(node: Worker) -> bool:
    """Whether storage is farther away than other workers' memory. A folder on the machine that they share is not."""
    return node.address != LOCALHOST or node.store.local_path(layout.STATUS) is None


def _with_checkpoint(result: Result, persister: StorageWriter) -> Result:
    """The result, once every save is written. If that fails, success becomes failure: the last save is missing."""
    try:
        persister.flush()
    except ElasticError as error:
        reason = f"the last checkpoint could not be written: {error}"
        logging.getLogger(__name__).warning("%s", reason)
        if result.outcome == "succeeded":
            at = time.time()
            return Result("failed", at, errors=(RankError(at=at, error=reason),), reason=reason)
    return result


def _failed(files: JobFiles, index: int, error: Exception) -> Result:
    """The result of an agent that failed itself. Without an exit code, so that no rank is blamed."""
    what = f"the agent failed: {type(error).__name__}: {error}".rstrip(": ")
    text = f"{what} (its log is {files.node(index) / 'agent.log'})"
    trace = "".join(traceback.format_exception(error))[-20000:]
    return Result(
        "failed", time.time(), errors=(RankError(at=time.time(), error=text, traceback=trace),), reason=text
    )


def _log_to(files: JobFiles, index: int) -> None:
    descriptor = os.open(files.node(index) / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        force=True,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
