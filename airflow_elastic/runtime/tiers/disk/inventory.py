"""Which states the disk of a machine has, for reports: their names and parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_elastic.runtime.tiers.disk.copies import read_record
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.status import StateOnDisk

if TYPE_CHECKING:
    from pathlib import Path


class DiskInventory:
    """Lists the parts of states below the folder of a run on a disk. Each record is read once.

    Args:
        root: the run's folder on the disk.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[Path, StateOnDisk | None] = {}

    def look(self) -> tuple[StateOnDisk, ...]:
        """The parts of all workers on this disk that have a record. Records that cannot be read do not count."""
        try:
            paths = sorted(self._root.glob(f"node-*/{layout.CHECKPOINT_DATA}*/part-*.json"))
        except OSError:  # removed meanwhile
            return ()
        self._known = {path: self._known.get(path) or _read(path) for path in paths}
        return tuple(dict.fromkeys(one for one in self._known.values() if one is not None))


def _read(path: Path) -> StateOnDisk | None:
    try:
        part = read_record(path.read_bytes()).part
    except (OSError, ValueError, SpecError, RecursionError):
        return None
    return StateOnDisk(path.parent.name, part.node, part.of)
