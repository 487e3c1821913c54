"""The rank processes of one worker in one generation: started together, watched, and ended together.

Their environment is the one that torchrun gives its ranks, so any script for torchrun runs unchanged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.runtime.staying.agent_link import NextGeneration
from airflow_elastic.runtime.staying.rank_links import LEAVE_SECONDS, RankProcess, StayingRank
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from types import TracebackType

    from airflow_elastic.adapters.records.job_files import Meeting, Members
    from airflow_elastic.runtime.agent.fork_server import ForkServer
    from airflow_elastic.runtime.agent.worker import Worker

log = logging.getLogger(__name__)

#: How long ranks may take to be gone after SIGKILL: the driver takes time to free their GPU memory.
GONE_SECONDS = 30.0

_LOOK_SECONDS = 0.02


def rank_environments(node: Worker, members: Members, meeting: Meeting) -> list[dict[str, str]]:
    """The environment of each rank of a worker."""
    procs, workers = node.record.spec.workers.procs, len(members.nodes)
    group, world, restarts = members.nodes.index(node.index), str(procs * workers), node.attempt - 1
    alike = {
        **os.environ,
        # Ranks use the agent's store of this generation. It is new, so it has no keys of earlier generations.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        **node.links.environment(),
        **node.environment(),
        "MASTER_ADDR": meeting.addr,
        "MASTER_PORT": str(meeting.port),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(procs),
        "GROUP_RANK": str(group),
        "GROUP_WORLD_SIZE": str(workers),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": world,
        "TORCHELASTIC_RUN_ID": node.record.name,
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        # Only for information: the run's own budget decides. The count above includes restarts that are free of charge,
        # such as after a preemption.
        "TORCHELASTIC_MAX_RESTARTS": str(max(node.record.spec.restart.backoff_limit, restarts)),
    }
    return [
        {
            **alike,
            "RANK": rank,
            "ROLE_RANK": rank,
            "LOCAL_RANK": str(local),
            "TORCHELASTIC_ERROR_FILE": f"{node.rank_files}-rank-{rank}.torch.json",
        }
        for local, rank in enumerate(str(group * procs + local) for local in range(procs))
    ]


def begun(ranks: Iterable[int], forked: Collection[int], stayed: Collection[int]) -> str:
    """`rank 0 stayed in its process; rank 1 started, by a fork`, for the agent's log.

    Args:
        ranks: of the worker.
        forked: those that are new forks.
        stayed: those whose processes were in the generation before.
    """
    started = [rank for rank in ranks if rank not in stayed]
    told = []
    if stayed:
        told.append(f"{_named(stayed)} stayed in {'its process' if len(stayed) == 1 else 'their processes'}")
    if len(started) == 1:
        told.append(f"{_named(started)} started, {'by a fork' if forked else 'in a new process'}")
    elif started:
        told.append(f"{_named(started)} started, {len(forked)} of them by forks")
    return "; ".join(told)


def _named(ranks: Collection[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, sorted(ranks)))}"


class RankGroup:
    """The ranks, from the start of the first to the end of the last.

    It waits on their pidfds: frequent polling would take processor time from training, and rare polling would notice
    the end of a rank late.

    Args:
        node: the worker.
        command: the command of each rank.
        environments: the environment of each rank.
        server: forks ranks; without it they start in new processes.
    """

    def __init__(
        self,
        node: Worker,
        command: Sequence[str],
        environments: Sequence[dict[str, str]],
        server: ForkServer,
    ) -> None:
        self._node, self._command, self._environments = node, command, environments
        self._server = server
        #: The ranks that are forks, and when they began, on the monotonic clock.
        self.forked: dict[int, float] = {}
        self._ranks: dict[int, RankProcess] = {}
        self._stayed: set[int] = set()
        self._alive = select.poll()
        self._alive.register(node.links, select.POLLIN)
        self._pidfds: set[int] = set()

    def __enter__(self) -> RankGroup:
        try:
            for environment in self._environments:
                self._start(int(environment["RANK"]), environment)
        except BaseException:
            self._end()
            raise
        log.info("generation %d: %s", self._node.generation, begun(self._ranks, self.forked, self._stayed))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def rest(self, seconds: float) -> None:
        """Wait until a rank ends or leaves, at most for `seconds`."""
        for descriptor, _ in self._alive.poll(seconds * 1000):
            if descriptor == self._node.links.fileno():
                self._node.links.look()
            else:
                self._let_go(descriptor)

    @property
    def codes(self) -> dict[int, int]:
        """The exit codes of the ranks that have ended, negative for signals."""
        found = {rank: process.poll() for rank, process in self._ranks.items()}
        return {rank: code for rank, code in found.items() if code is not None}

    @property
    def broken(self) -> list[int]:
        """The ranks that have lost their peers, and wait in `run.train` for the next generation."""
        links = self._node.links
        return [
            rank
            for rank, process in self._ranks.items()
            if links.left(process.pid) == "broken" and not links.was_told(process.pid)
        ]

    def let_stay(self) -> None:
        """The generation is over, and another one may follow: order ranks in `run.train` to leave, and keep them."""
        node = self._node
        for environment in self._environments:
            process = self._ranks[int(environment["RANK"])]
            if process.poll() is None and node.links.can_stay(process.pid):
                node.links.tell_to_leave(process.pid)
                node.staying[int(environment["LOCAL_RANK"])] = StayingRank(process, environment)
        stayers = {one.process.pid for one in node.staying.values()}
        self._ranks = {rank: one for rank, one in self._ranks.items() if one.pid not in stayers}

    @property
    def succeeded(self) -> bool:
        """Whether all ranks have ended with exit code 0."""
        return [*self.codes.values()] == [0] * len(self._environments)

    def _start(self, rank: int, environment: dict[str, str]) -> None:
        output = self._node.logs / layout.rank_log(self._node.generation, rank)
        # torchrun replaces this in arguments, too.
        command = [word.replace("${local_rank}", environment["LOCAL_RANK"]) for word in self._command]
        process = self._rejoined(rank, environment, output)
        if process is None:
            forked = self._server.fork(command, environment, output)
            if forked is not None:
                self.forked[rank] = time.monotonic()
            process = forked or _cold(command, environment, output)
        self._ranks[rank] = process
        self._node.note(rank, process.pid)
        descriptor = os.pidfd_open(process.pid)
        self._alive.register(descriptor, select.POLLIN)
        self._pidfds.add(descriptor)

    def _rejoined(self, rank: int, environment: dict[str, str], output: Path) -> RankProcess | None:
        """The process that has had this place before, if it has joined this generation."""
        stayer = self._node.staying.pop(int(environment["LOCAL_RANK"]), None)
        if stayer is None:
            return None
        following = NextGeneration.after(stayer.environment, environment, output)
        if self._node.links.join(stayer.process.pid, following, LEAVE_SECONDS):
            self._stayed.add(rank)
            return stayer.process
        _kill(stayer.process)
        return None

    def _end(self) -> None:
        """End the ranks and the processes that they have started, and wait until they are gone and free their memory.

        SIGTERM first, then SIGKILL after `node.patience`, so that no rank can keep an attempt from ending.
        """
        self._node.processes = {}
        if set(self.codes) != set(self._ranks):
            self._signal(signal.SIGTERM)
            until = time.monotonic() + self._node.patience
            while set(self.codes) != set(self._ranks) and time.monotonic() < until:
                self.rest(_LOOK_SECONDS)
        self._signal(signal.SIGKILL)
        for process in self._ranks.values():
            _wait_for(process)
        for descriptor in tuple(self._pidfds):
            self._let_go(descriptor)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group of each rank, which may outlive the rank."""
        for process in self._ranks.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)

    def _let_go(self, descriptor: int) -> None:
        self._alive.unregister(descriptor)
        self._pidfds.discard(descriptor)
        os.close(descriptor)


def end_staying(node: Worker) -> None:
    """No generation follows: end the ranks that have waited for it."""
    while node.staying:
        _kill(node.staying.popitem()[1].process)


def await_leaving(node: Worker) -> None:
    """Wait until ranks that stay have left their generation. Those that take too long, or cannot stay, are ended.

    After that none of them saves, so the states that they have saved can be written.
    """
    links = node.links
    for place, one in list(node.staying.items()):
        if not links.await_leaving(one.process.pid, one.since + LEAVE_SECONDS - time.monotonic()):
            log.info("the process of local rank %d cannot stay, so it is ended", place)
            _kill(node.staying.pop(place).process)


def _kill(process: RankProcess) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    _wait_for(process)


def _wait_for(process: RankProcess) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GONE_SECONDS)


def _cold(command: Sequence[str], environment: dict[str, str], output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
