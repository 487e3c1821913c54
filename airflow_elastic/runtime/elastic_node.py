"""A worker whose ranks are torch's elastic agent's: they are started anew, in place, when workers join or leave."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, SubprocessContext

from airflow_elastic.adapters.jobfiles import Result
from airflow_elastic.adapters.mailbox import Mailbox, RankTrouble
from airflow_elastic.launchers import Place, find_launcher
from airflow_elastic.runtime.node import Stopped
from airflow_elastic.runtime.rendezvous import GenerationRendezvous
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import ElasticError
from airflow_elastic.spec.status import WorkerPhase, WorkerStatus

if TYPE_CHECKING:
    from airflow_elastic.runtime.node import Node

log = logging.getLogger(__name__)

#: How often the agent looks for orders. That a rank has ended it sees at once.
ORDERS_SECONDS = 0.25

#: How long a worker that is done waits for the others.
EXIT_SECONDS = 60.0

#: How long ranks may take to be gone after they were killed: what they held on a GPU takes its time.
GONE_SECONDS = 30.0

#: For so long an agent whose ranks have failed looks often for what follows; each look may cost a request.
EAGER_SECONDS = 10.0

#: Of a worker's failed ranks so many are told of, with so much of their tracebacks.
TOLD_ERRORS, TOLD_CHARACTERS = 2, 8000

#: How often torch's agent looks at its ranks where none has ended.
MONITOR_SECONDS = 1.0


class _RankLogs(LogsSpecs):
    """One file for each rank and generation, and the environment that only we know about."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self._node = node

    @property
    def root_log_dir(self) -> str:
        return str(self._node.logs)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        node, logs = self._node, LogsDest()
        for local, env in envs.items():
            env.update({**node.environment(), **_only_ours(env)})
            logs.stdouts[local] = str(node.logs / layout.rank_log(node.generation, int(env["RANK"])))
            logs.stderrs[local] = ""  # the rank's entry point joins it to its standard output
            logs.error_files[local] = env["TORCHELASTIC_ERROR_FILE"] = (
                f"{node.rank_files}-rank-{env['RANK']}.torch.json"
            )
        return logs


def _only_ours(env: dict[str, str]) -> dict[str, str]:
    """What the agent has set stands; only the number of threads is the specification's to say."""
    return {key: value for key, value in env.items() if key != "OMP_NUM_THREADS"}


class _Agent(LocalElasticAgent):
    """torch's agent, which never keeps an attempt from ending: ranks that do not heed SIGTERM are killed soon.

    Between its looks it rests on its ranks' pidfds: looking often takes time from training where every processor is in
    use, and looking seldom finds out late.

    Attributes:
        ended: process ids of ranks that were ended because another one had failed.
    """

    def __init__(self, node: Node, spec: WorkerSpec, **options: Any) -> None:
        super().__init__(spec, **options)
        self._node = node
        self._alive = select.poll()
        self._pidfds: set[int] = set()
        self.ended: set[int] = set()

    def close(self) -> None:
        """Let go of what it holds of its ranks."""
        self._let_go(tuple(self._pidfds))

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        for _ in range(round(MONITOR_SECONDS / ORDERS_SECONDS)):
            ended = self._alive.poll(ORDERS_SECONDS * 1000)
            self._let_go(descriptor for descriptor, _ in ended)
            if ended or self._node.stop_at is not None or self._node.superseded():
                break
        result: RunResult = super()._monitor_workers(worker_group)
        return result

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        ids: dict[int, Any] = super()._start_workers(worker_group)
        context = self._pcontext
        if not isinstance(context, SubprocessContext):
            raise RuntimeError("torch's elastic agent started no ranks")
        self._let_go(tuple(self._pidfds))
        for pid in context.pids().values():
            descriptor = os.pidfd_open(pid)
            self._alive.register(descriptor, select.POLLIN)
            self._pidfds.add(descriptor)
        close = context.close

        def close_soon(death_sig: signal.Signals | None = None, timeout: int = 0) -> None:
            ranks = [one.proc for one in context.subprocess_handlers.values()]
            self.ended |= {rank.pid for rank in ranks if rank.poll() is None}
            close(death_sig, math.ceil(self._node.patience))
            _end_sessions(ranks)

        # When a rank fails, torch gives its siblings 30 s that no parameter changes.
        context.close = close_soon  # type: ignore[method-assign]
        return ids

    def _exit_barrier(self) -> None:
        """Stay until the others are done as well: what the first one of them opened, all of their ranks use.

        Unless they are not: then the next attempt may begin in this job, and this worker is one of it.
        """
        node, until = self._node, time.monotonic() + EXIT_SECONDS
        members, store = node.members, node.meeting_store
        if members is None or store is None:
            return
        done = [f"done/{index}" for index in members.nodes]
        with contextlib.suppress(RuntimeError):  # torch's: the store is gone, and whoever opened it
            store.set(f"done/{node.index}", "")
            while not store.check(done) and time.monotonic() < until:
                if node.stop_at is not None or node.superseded():
                    return
                time.sleep(max(0.02, node.files.poll_seconds))

    def _let_go(self, descriptors: Iterable[int]) -> None:
        for descriptor in descriptors:
            self._alive.unregister(descriptor)
            self._pidfds.discard(descriptor)
            os.close(descriptor)


def run_elastic(node: Node, report: Callable[[], None]) -> Result:
    """Run the worker to its end; returns how that was. Raises Stopped.

    Args:
        node: the worker.
        report: writes down how far its ranks have come.
    """
    while True:
        try:
            result = _run_ranks(node)
        except DistError:
            node.files.look_anew()
            if not node.superseded():
                raise
            continue  # the lead has left this meeting for the next one, and has taken its store along
        if result.outcome == "succeeded" and node.replaced():
            continue  # a peer has failed at its very end, and what the run makes of it needs all workers
        if result.outcome != "failed" or not node.record.standby or not _told(node, result, report):
            return result
        if not _stands_by(node):
            return result


def _told(node: Node, result: Result, report: Callable[[], None]) -> bool:
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


def _stands_by(node: Node) -> bool:
    """Wait for new ranks; False where none were wanted for as long as a start may take. Raises Stopped.

    What the ranks had saved is written first.
    """
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


def _end_sessions(ranks: Iterable[subprocess.Popen[bytes]]) -> None:
    """Kill what ranks have started and left behind, and see the ranks themselves gone: others need their memory."""
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(rank.pid, signal.SIGKILL)
    for rank in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.wait(GONE_SECONDS)


def _run_ranks(node: Node) -> Result:
    spec = node.record.spec
    place = Place(node.record.python, node.index, spec.workers.count, node.address, 0)
    command = find_launcher(spec.launcher).command(spec, place)
    # SIGTERM is ours: it means save, then end. torch would answer it by killing the ranks.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGHUP"
    agent = _Agent(
        node,
        WorkerSpec(
            role="rank",
            local_world_size=spec.workers.procs,
            entrypoint=command[0],
            args=tuple(command[1:]),
            rdzv_handler=GenerationRendezvous(node),
            max_restarts=0,  # a failed rank ends the attempt: the run's own budget decides what follows
            monitor_interval=1e-6,  # none, which torch refuses: it rests by itself
        ),
        logs_specs=_RankLogs(node),
    )
    try:
        outcome: RunResult | None = agent.run()
    finally:
        agent.close()
    if outcome is None:
        return Result("left", time.time(), reason="left by a scale step")
    if not outcome.is_failed():
        return Result("succeeded", time.time())
    return Result("failed", time.time(), errors=_errors(node, outcome, agent.ended))


def _errors(node: Node, outcome: RunResult, ended: set[int]) -> tuple[Any, ...]:
    """The ranks that failed by themselves; their siblings were ended by the agent because of them."""
    own = {rank: failure for rank, failure in outcome.failures.items() if failure.pid not in ended}
    return tuple(node.rank_error(rank, failure.exitcode) for rank, failure in own.items())
