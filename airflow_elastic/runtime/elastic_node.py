"""A worker whose ranks are torch's elastic agent's: they are started anew, in place, when workers join or leave."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs

from airflow_elastic.adapters.jobfiles import Result
from airflow_elastic.launchers import Place, find_launcher
from airflow_elastic.runtime.rendezvous import ADDRESS, GenerationRendezvous
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    import signal

    from airflow_elastic.runtime.node import Node

log = logging.getLogger(__name__)

#: How often the agent looks at its ranks.
MONITOR_SECONDS = 0.05

#: Ranks that do not heed SIGTERM are killed after this: a rank that has parked has nothing left to do, and one that is
#: blocked in a collective cannot run a Python signal handler at all.
KILL_AFTER_SECONDS = 1


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
    """torch's agent, which never keeps an attempt from ending: ranks that do not heed SIGTERM are killed soon."""

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        ids: dict[int, Any] = super()._start_workers(worker_group)
        context = self._pcontext
        if context is None:
            raise RuntimeError("torch's elastic agent started no ranks")
        close = context.close

        def close_soon(death_sig: signal.Signals | None = None, timeout: int = KILL_AFTER_SECONDS) -> None:
            close(death_sig, min(timeout, KILL_AFTER_SECONDS))

        # When a rank fails, torch gives its siblings 30 s that no parameter changes.
        context.close = close_soon  # type: ignore[method-assign]
        return ids


def run_elastic(node: Node) -> Result:
    """Run the worker to its end; returns how that was. Raises Stopped."""
    spec = node.record.spec
    place = Place(node.record.python, node.index, spec.workers.count, ADDRESS, 0)
    command = find_launcher(spec.launcher).command(spec, place)
    # SIGTERM is ours: it means save, then end. torch would answer it by killing the ranks.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGHUP"
    agent = _Agent(
        spec=WorkerSpec(
            role="rank",
            local_world_size=spec.workers.procs,
            entrypoint=command[0],
            args=tuple(command[1:]),
            rdzv_handler=GenerationRendezvous(node),
            max_restarts=0,  # a failed rank ends the attempt: the run's own budget decides what follows
            monitor_interval=MONITOR_SECONDS,
        ),
        logs_specs=_RankLogs(node),
        exit_barrier_timeout=60,
        shutdown_timeout=KILL_AFTER_SECONDS,
    )
    outcome: RunResult | None = agent.run()
    if outcome is None:
        return Result("left", time.time(), reason="left by a scale step")
    if not outcome.is_failed():
        return Result("succeeded", time.time())
    return Result("failed", time.time(), errors=_errors(node, outcome))


def _errors(node: Node, outcome: RunResult) -> tuple[Any, ...]:
    """The ranks that failed by themselves; their siblings were ended by the agent because of them."""
    codes = {rank: failure.exitcode for rank, failure in outcome.failures.items()}
    own = {rank: code for rank, code in codes.items() if code != -15} or codes
    return tuple(node.rank_error(rank, code) for rank, code in own.items())
