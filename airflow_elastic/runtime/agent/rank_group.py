"""The rank processes of one worker in one generation: started together, watched, and ended together.

What they find in their environment is what torchrun gives its ranks, so that any script of torch's runs unchanged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from types import TracebackType

    from airflow_elastic.adapters.records.job_files import Meeting, Members
    from airflow_elastic.runtime.agent.spares import Spares
    from airflow_elastic.runtime.agent.worker import Worker

log = logging.getLogger(__name__)

#: How long ranks may take to be gone after they were killed: what they held on a GPU takes its time.
GONE_SECONDS = 30.0

_LOOK_SECONDS = 0.02


def rank_environments(node: Worker, members: Members, meeting: Meeting) -> list[dict[str, str]]:
    """What the ranks of a worker find in their environment, each in its own."""
    procs, workers = node.record.spec.workers.procs, len(members.nodes)
    group, world, restarts = members.nodes.index(node.index), str(procs * workers), node.attempt - 1
    alike = {
        **os.environ,
        # The generation's store: it is fresh, so there are no keys of former ones in it.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
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
        # The run's own budget decides. Restarts that cost nothing of it, after a preemption, are counted above, too.
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


class RankGroup:
    """Ranks, from the start of the first to the end of the last.

    Between looks it rests on their pidfds: looking often takes time from training where every processor is in use, and
    looking seldom finds out late.

    Args:
        node: the worker.
        command: of each rank.
        environments: of each rank.
        spares: those of the worker.
    """

    def __init__(
        self,
        node: Worker,
        command: Sequence[str],
        environments: Sequence[dict[str, str]],
        spares: Spares,
    ) -> None:
        self._node, self._command, self._environments = node, command, environments
        self._spares, self._warm = spares, 0
        self._ranks: dict[int, subprocess.Popen[bytes]] = {}
        self._alive = select.poll()
        self._pidfds: set[int] = set()

    def __enter__(self) -> RankGroup:
        try:
            for environment in self._environments:
                self._start(int(environment["RANK"]), environment)
        except BaseException:
            self._end()
            raise
        log.info(
            "generation %d: ranks %s started, %d of them by spares",
            self._node.generation,
            ", ".join(map(str, self._ranks)),
            self._warm,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def rest(self, seconds: float) -> None:
        """Wait until one of them ends, at most so long."""
        for descriptor, _ in self._alive.poll(seconds * 1000):
            self._let_go(descriptor)

    @property
    def codes(self) -> dict[int, int]:
        """How those ranks have ended that have: exit codes, negative for signals."""
        found = {rank: process.poll() for rank, process in self._ranks.items()}
        return {rank: code for rank, code in found.items() if code is not None}

    @property
    def succeeded(self) -> bool:
        """Whether all of them have."""
        return [*self.codes.values()] == [0] * len(self._environments)

    def _start(self, rank: int, environment: dict[str, str]) -> None:
        output = self._node.logs / layout.rank_log(self._node.generation, rank)
        # As torchrun's ranks have it, in their arguments.
        command = [word.replace("${local_rank}", environment["LOCAL_RANK"]) for word in self._command]
        spare = self._spares.become(command, environment, output)
        self._warm += spare is not None
        self._ranks[rank] = process = spare or _cold(command, environment, output)
        self._node.note(rank, process.pid)
        descriptor = os.pidfd_open(process.pid)
        self._alive.register(descriptor, select.POLLIN)
        self._pidfds.add(descriptor)

    def _end(self) -> None:
        """End them and what they have started, and see them gone: others need their memory.

        Those that do not heed SIGTERM are killed soon, so that they never keep an attempt from ending.
        """
        self._node.processes = {}
        if set(self.codes) != set(self._ranks):
            self._signal(signal.SIGTERM)
            until = time.monotonic() + self._node.patience
            while set(self.codes) != set(self._ranks) and time.monotonic() < until:
                self.rest(_LOOK_SECONDS)
        self._signal(signal.SIGKILL)
        for process in self._ranks.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GONE_SECONDS)
        for descriptor in tuple(self._pidfds):
            self._let_go(descriptor)

    def _signal(self, number: signal.Signals) -> None:
        """To the whole session of each, whatever it has left there."""
        for process in self._ranks.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)

    def _let_go(self, descriptor: int) -> None:
        self._alive.unregister(descriptor)
        self._pidfds.discard(descriptor)
        os.close(descriptor)


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
