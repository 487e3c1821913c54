"""A thread of the agent that writes staged states to the disk of the worker's machine while ranks train on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.job_files import attempt_of
from airflow_elastic.runtime.tiers.follower import Follower
from airflow_elastic.runtime.tiers.shared_memory import MEMORY
from airflow_elastic.spec.errors import ElasticError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from airflow_elastic.runtime.tiers.disk.copies import WorkerDisk
    from airflow_elastic.runtime.tiers.shared_memory import Note, StagingSlot
    from airflow_elastic.runtime.tiers.worker import TierWorker

#: How long to wait for a write that has begun, before the folder is removed.
_STOP_SECONDS = 20.0

#: How long to wait for other workers' parts of the last checkpoint.
_STORED_SECONDS = 20.0

_POLL_SECONDS = 1.0


class DiskWriter(Follower):
    """A thread of the agent that writes staged states to the disk, except those that were meant for memory only.

    Args:
        node: the worker.
        disk: where to write.
    """

    def __init__(self, node: TierWorker, disk: WorkerDisk) -> None:
        super().__init__(node, "disk", _STOP_SECONDS)
        self._disk = disk

    def start(self) -> None:
        """Start the thread. A disk that cannot be used is reported now, before the first step."""
        try:
            self._disk.begin()
        except (ElasticError, OSError) as error:
            self._refuse(0, _untaken(error))
        super().start()

    def finish(self, flushed: Callable[[], bool], *, done: bool) -> None:
        """End the thread. States that could not be written to storage are written to the disk.

        If training is complete, or goes on without this worker, and storage has the last state, the copies are removed.
        """
        with self._disk.awaited():
            self.end()
            if not flushed():
                if self.stop():
                    self._over.clear()
                    self._look(heard=True)
            elif done and self._is_stored() and self.stop():
                self._disk.clear()

    def _is_stored(self) -> bool:
        """Whether storage has the last state that this worker has saved.

        Waits a while, because other workers may still be writing their parts. If they never do, the run must go on from
        the copies on disks.
        """
        give_up = time.monotonic() + _STORED_SECONDS
        while time.monotonic() < give_up:
            try:
                steps = checkpoints.steps(self._node.store)
            except ElasticError:
                return False
            if self._tried[1] < 0 or (steps and steps[-1] >= self._tried[1]):
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def _wants(self, reason: str) -> bool:
        return reason != MEMORY

    def _in_turn(self, ages: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int]]:
        return ages  # all of them, because a state is complete only if every worker writes its part

    def _take(self, held: Sequence[tuple[StagingSlot, Note]]) -> None:
        node, note = self._node, held[0][1]
        try:
            members = node.files.members(note.generation)
            if members is not None:
                part = members.nodes.index(node.index)
                self._disk.write(held, part, len(members.nodes), attempt_of(node.record, members))
                self._refused = False
        except (ElasticError, OSError) as error:
            self._refuse(note.step, _untaken(error))
        finally:  # also after a failure: ranks wait for this before they try the next save
            if note.generation == node.generation:
                node.tell_ranks({shared_page.ON_DISK: float(note.step)})


def _untaken(error: Exception) -> str:
    return f"saves are not written to the worker's disk: {error}"
