"""A worker whose ranks are started anew, in place, when workers join or leave, and after a failure."""

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
from airflow_elastic.runtime.agent.rank_group import RankGroup, rank_environments
from airflow_elastic.runtime.agent.rendezvous import LeftGeneration, meet
from airflow_elastic.runtime.agent.worker import Stopped
from airflow_elastic.runtime.tiers.disk.recovery import recover
from airflow_elastic.spec.errors import ElasticError
from airflow_elastic.spec.status import WorkerPhase, WorkerStatus

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

    from airflow_elastic.adapters.records.job_files import Members
    from airflow_elastic.runtime.agent.spares import Spares
    from airflow_elastic.runtime.agent.worker import Worker

log = logging.getLogger(__name__)

#: How often the agent looks for orders. That a rank has ended it sees at once.
ORDERS_SECONDS = 0.25

#: So long after its ranks, once these train, a worker begins spares for the next ones; how often it looks after them.
BEGUN_SECONDS, SPARES_SECONDS = 10.0, 2.0

#: How long a worker that is done waits for the others.
EXIT_SECONDS = 60.0

#: For so long an agent whose ranks have failed looks often for what follows; each look may cost a request.
EAGER_SECONDS = 10.0

#: Of a worker's failed ranks so many are told of, with so much of their tracebacks.
TOLD_ERRORS, TOLD_CHARACTERS = 2, 8000


def run_elastic(node: Worker, spares: Spares, report: Callable[[], None]) -> Result:
    """Run the worker to its end; returns how that was. Raises Stopped.

    Args:
        node: the worker.
        spares: its own.
        report: writes down how far its ranks have come.
    """
    while True:
        try:
            result = _run_ranks(node, spares)
            if result.outcome == "succeeded":
                keep_last(node)
        except DistError:
            node.files.look_anew()
            if not node.superseded():
                raise
            continue  # the lead has left this meeting for the next one, and has taken its store along
        if result.outcome == "succeeded" and node.replaced():
            continue  # a peer has failed at its very end, and what the run makes of it needs all workers
        if result.outcome != "failed" or not node.record.standby or not _told(node, result, report):
            if node.finished and result.outcome == "failed":  # its ranks' exit codes alone are bad
                with contextlib.suppress(Stopped):
                    keep_last(node)
            return result
        if not _stands_by(node):
            return result


def _told(node: Worker, result: Result, report: Callable[[], None]) -> bool:
    """Tell of the failure. Where that cannot be, the worker has to end: how it did so is seen by whoever watches."""
    node.standing_by = True
    errors = tuple(
        replace(error, traceback=(error.traceback or "")[-TOLD_CHARACTERS:] or None)
        for error in result.errors[:TOLD_ERRORS]
    )
    worker = WorkerStatus(f"node-{node.index}", WorkerPhase.FAILED, errors=errors)
    trouble = RankTrouble(node.attempt, worker, node.step())
    try:  # before anything else: which worker's word comes first decides what is taken for the cause
        Mailbox(node.store).post("failed", by=worker.name, ranks=trouble)
    except ElasticError as error:
        log.warning("that its ranks have failed cannot be told, so the worker ends: %s", error)
        return False
    report()
    node.files.stand_by(node.index, node.generation)
    return True


def _stands_by(node: Worker) -> bool:
    """Wait for new ranks; False where none were wanted for as long as a start may take. Raises Stopped.

    What the ranks had saved is written first.
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
            log.warning("nobody has said what follows for %.0f s: the worker ends", waited)
            return False
        time.sleep(node.files.standby_seconds)
        if waited < EAGER_SECONDS:
            node.files.look_anew()
    return True


def _run_ranks(node: Worker, spares: Spares) -> Result:
    """Run its ranks, in generation after generation, until they have ended."""
    spec = node.record.spec
    place = Place(node.record.python, node.index, spec.workers.count, node.address, 0)
    command = find_launcher(spec.launcher).command(spec, place)
    while True:
        try:
            members, meeting, store = meet(node, partial(recover, node))
        except LeftGeneration:
            return Result("left", time.time(), reason="left by a scale step")
        try:
            with RankGroup(node, command, rank_environments(node, members, meeting), spares) as group:
                result = _watch(node, group, spares)
                if result is not None and result.outcome == "succeeded":
                    _wait_for_the_others(node, members, store)
        finally:
            node.meeting_store = None
        if result is not None:
            return result


def _watch(node: Worker, group: RankGroup, spares: Spares) -> Result | None:
    """Wait for the end of ranks; None where they are to be started anew. Raises Stopped."""
    began = looked = time.monotonic()
    while True:
        group.rest(ORDERS_SECONDS)
        if time.monotonic() - looked > SPARES_SECONDS:
            looked = time.monotonic()
            spares.look()
            if looked - began > BEGUN_SECONDS and (node.step() or not node.pages()):
                spares.begin()
        codes = group.codes
        if any(codes.values()):
            # Those that end now are ended because of these.
            return Result(
                "failed", time.time(), errors=tuple(node.rank_error(*one) for one in codes.items() if one[1])
            )
        if group.succeeded:
            return Result("succeeded", time.time())
        if node.stop_at is not None and node.parked():
            raise Stopped
        if node.superseded() and node.parked():
            return None


def _wait_for_the_others(node: Worker, members: Members, store: TCPStore) -> None:
    """Stay until the others are done as well: what the first one of them opened, all of their ranks use.

    Unless they are not: then the next attempt may begin in this job, and this worker is one of it.
    """
    until, done = time.monotonic() + EXIT_SECONDS, [f"done/{index}" for index in members.nodes]
    with contextlib.suppress(RuntimeError):  # torch's: the store is gone, and whoever opened it
        store.set(f"done/{node.index}", "")
        while not store.check(done) and time.monotonic() < until:
            if node.stop_at is not None or node.superseded():
                return
            time.sleep(max(0.02, node.files.poll_seconds))
