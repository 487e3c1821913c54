"""A worker that starts its ranks again in place: when workers join or leave, and after a failure."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from torch.distributed import DistError

from airflow_elastic.adapters.records.job_files import Result
from airflow_elastic.adapters.records.mailbox import Mailbox, RankTrouble
from airflow_elastic.launchers import Place, find_launcher
from airflow_elastic.runtime.agent.last_save import keep_last
from airflow_elastic.runtime.agent.rank_group import RankGroup, await_leaving, end_staying, rank_environments
from airflow_elastic.runtime.agent.rendezvous import LeftGeneration, NotNeeded, meet
from airflow_elastic.runtime.agent.shipped_script import with_script
from airflow_elastic.runtime.agent.worker import Stopped
from airflow_elastic.runtime.tiers.disk.recovery import recover
from airflow_elastic.spec.errors import ElasticError
from airflow_elastic.spec.status import WorkerPhase, WorkerStatus

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

    from airflow_elastic.adapters.records.job_files import Members
    from airflow_elastic.runtime.agent.fork_server import ForkServer
    from airflow_elastic.runtime.agent.worker import Worker

log = logging.getLogger(__name__)

#: How often the agent looks for orders. It notices the end of a rank at once, and looks often once a peer is lost.
ORDERS_SECONDS = 0.1

#: How often the agent checks that its fork server lives.
SERVER_SECONDS = 2.0

#: How long a worker that is done waits for the others.
EXIT_SECONDS = 60.0

#: How long an agent whose ranks have failed looks often for the next generation. Each look may cost a request.
EAGER_SECONDS = 10.0

#: How long ranks in `run.train` have lost their peers before that is reported: who has lost a rank reports the cause.
BROKEN_SECONDS = 1.0

#: A failure report has at most so many ranks, with at most so many characters of their tracebacks.
REPORTED_ERRORS, REPORTED_CHARACTERS = 2, 8000


def run_elastic(node: Worker, server: ForkServer, report: Callable[[], None]) -> Result:
    """Run the worker to its end. Returns how it ended. Raises Stopped.

    Args:
        node: the worker.
        server: forks its ranks.
        report: reports the progress of its ranks.
    """
    try:
        return _run_elastic(node, server, report)
    finally:
        end_staying(node)


def _run_elastic(node: Worker, server: ForkServer, report: Callable[[], None]) -> Result:
    while True:
        try:
            result = _run_ranks(node, server)
            if node.members is None:
                return result  # it has had no ranks
            if result.outcome == "succeeded":
                keep_last(node)
        except DistError:
            node.files.look_anew()
            if not node.superseded():
                raise
            continue  # the lead went over to the next generation, and its store for this one ended
        if result.outcome == "succeeded" and node.replaced():
            continue  # a peer failed at its very end, and the next attempt needs all workers
        if result.outcome != "failed" or not node.record.standby or not _reported(node, result, report):
            if node.finished and result.outcome == "failed":  # only the ranks' exit codes are bad
                with contextlib.suppress(Stopped):
                    keep_last(node)
            return result
        if not _stands_by(node):
            return result


def _reported(node: Worker, result: Result, report: Callable[[], None]) -> bool:
    """Report the failure. Returns False if that fails: then the worker must end, so that the engine notices it."""
    node.standing_by = True
    errors = tuple(
        replace(error, traceback=(error.traceback or "")[-REPORTED_CHARACTERS:] or None)
        for error in result.errors[:REPORTED_ERRORS]
    )
    worker = WorkerStatus(f"node-{node.index}", WorkerPhase.FAILED, errors=errors)
    trouble = RankTrouble(node.attempt, worker, node.step())
    try:  # before anything else: the first report of a failure decides what counts as its cause
        Mailbox(node.store).post("failed", by=worker.name, ranks=trouble)
    except ElasticError as error:
        log.warning("the failure of the ranks cannot be reported, so the worker ends: %s", error)
        return False
    report()
    node.files.stand_by(node.index, node.generation)
    return True


def _stands_by(node: Worker) -> bool:
    """Wait for a new generation. Returns False if none begins within `health.start_seconds`. Raises Stopped.

    First writes the states that the ranks had saved.
    """
    if node.finished:
        keep_last(node)
    else:
        node.flush()
    began = time.monotonic()
    while not node.superseded():
        if node.stop_at is not None or node.files.closed:
            raise Stopped
        waited = time.monotonic() - began
        if waited > node.record.spec.health.start_seconds:
            log.warning("no new generation began within %.0f s of the failure: the worker ends", waited)
            return False
        time.sleep(node.files.standby_seconds)
        if waited < EAGER_SECONDS:
            node.files.look_anew()
    return True


def _run_ranks(node: Worker, server: ForkServer) -> Result:
    """Run its ranks, one generation after another, until they have ended."""
    spec = with_script(node)
    place = Place(node.record.python, node.index, spec.workers.count, node.address, 0)
    command = find_launcher(spec.launcher).command(spec, place)
    while True:
        try:
            await_leaving(node)
            members, meeting, store = meet(node, partial(recover, node))
        except NotNeeded as why:
            return Result("succeeded", time.time(), reason=str(why))
        except LeftGeneration:
            return Result("left", time.time(), reason="left by a scale step")
        try:
            with RankGroup(node, command, rank_environments(node, members, meeting), server) as group:
                result = _watch(node, group, server)
                if result is None or (result.outcome == "failed" and node.record.standby):
                    group.let_stay()
                if result is not None and result.outcome == "succeeded":
                    _wait_for_the_others(node, members, store)
        finally:
            node.meeting_store = None
        if result is not None:
            return result


def _watch(node: Worker, group: RankGroup, server: ForkServer) -> Result | None:
    """Wait for the end of the ranks. Returns None if they must start again in a newer generation. Raises Stopped."""
    looked, broken_at = time.monotonic(), None
    while True:
        group.rest(ORDERS_SECONDS if broken_at is None else node.files.standby_seconds)
        if broken_at is not None:
            node.files.look_anew()
        if time.monotonic() - looked > SERVER_SECONDS:
            looked = time.monotonic()
            server.look()
        codes = group.codes
        if any(codes.values()):
            # Ranks that end from now on are ended because of this failure, so they are not reported.
            errors = [node.rank_error(*one) for one in codes.items() if one[1]]
            return Result("failed", time.time(), errors=server.blamed(errors, group.forked))
        broken_at = (broken_at or time.monotonic()) if group.broken else None
        if broken_at is not None and time.monotonic() - broken_at > BROKEN_SECONDS:
            # As if they had ended: their processes wait for what the run decides.
            return Result(
                "failed", time.time(), errors=tuple(node.rank_error(rank, 1) for rank in group.broken)
            )
        if group.succeeded:
            return Result("succeeded", time.time())
        if node.stop_at is not None and node.parked():
            raise Stopped
        if node.superseded() and node.parked():
            return None


def _wait_for_the_others(node: Worker, members: Members, store: TCPStore) -> None:
    """Wait until all workers are done, because their ranks use the store in the lead's agent.

    Ends early if a newer generation begins: if another worker fails now, the next attempt needs this worker.
    """
    until, done = time.monotonic() + EXIT_SECONDS, [f"done/{index}" for index in members.nodes]
    with contextlib.suppress(RuntimeError):  # from torch: the lead is gone, with its store
        store.set(f"done/{node.index}", "")
        while not store.check(done) and time.monotonic() < until:
            if node.stop_at is not None or node.superseded():
                return
            time.sleep(max(0.02, node.files.poll_seconds))
