"""Writing to the disk of the worker's machine what its ranks have staged, while they train on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_elastic.adapters.jobfiles import attempt_of
from airflow_elastic.runtime.following import Follower
from airflow_elastic.runtime.slots import MEMORY
from airflow_elastic.spec.errors import ElasticError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_elastic.runtime.disk import Disk
    from airflow_elastic.runtime.node import Node
    from airflow_elastic.runtime.slots import Note, Slot

_STOP_SECONDS = 20.0


class DiskWriter(Follower):
    """A thread of the agent that writes the newest state to the disk, unless that was meant for memory alone.

    Args:
        node: the worker.
        disk: where to.
    """

    def __init__(self, node: Node, disk: Disk) -> None:
        super().__init__(node, "disk", _STOP_SECONDS)
        self._disk = disk

    def start(self) -> None:
        """Begin, and tell where the disk cannot be used: before the first step."""
        try:
            self._disk.begin()
        except (ElasticError, OSError) as error:
            self._refuse(0, _untaken(error))
        super().start()

    def _wants(self, note: Note) -> bool:
        return note.reason != MEMORY

    def _take(self, held: Sequence[tuple[Slot, Note]]) -> None:
        node, note = self._node, held[0][1]
        members = node.files.members(note.generation)
        if members is None:
            return
        part = members.nodes.index(node.index)
        try:
            self._disk.write(held, part, len(members.nodes), attempt_of(node.record, members))
        except (ElasticError, OSError) as error:
            if note.generation == node.generation:  # what is of none that goes on may have been tidied away
                self._refuse(note.step, _untaken(error))
        else:
            self._refused = False


def _untaken(error: Exception) -> str:
    return f"what is saved is not kept on the worker's disk: {error}"
