"""Find the files of a checkpoint that need no download: the worker's disk or another worker's memory has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airflow_elastic.runtime.environment import PROCESSORS
from airflow_elastic.runtime.tiers.disk.copies import find_on_disk
from airflow_elastic.runtime.tiers.peers.peer_client import PeerFile
from airflow_elastic.runtime.tiers.tiered_files import LocalFiles
from airflow_elastic.spec.checkpoints.manifest import Manifest


@dataclass(frozen=True, slots=True)
class WorkerCache:
    """The copies of files that the ranks of a worker can reach, and the folder for files that they fetch.

    Attributes:
        folder: for fetched files, on the worker's own disk; exists only while a checkpoint is being restored.
        procs: number of ranks of the worker.
        disk: the run's folder on the worker's own disk, in which agents keep checkpoints; None if they do not.
        loans: files that other workers' agents have in memory, by key.
        worker: the worker's name.
        processors: of this rank alone.
    """

    folder: Path
    procs: int
    disk: Path | None = None
    loans: Mapping[str, PeerFile] = field(default_factory=dict)
    worker: str = "node-0"
    processors: int = PROCESSORS

    def nearby(self, manifest: Manifest, *, from_disk: bool) -> LocalFiles:
        """Find the files of this checkpoint on the worker's disk, if asked to, and in other workers' memory."""
        disk = find_on_disk(self.disk, manifest) if from_disk and self.disk is not None else {}
        lent = {
            file.key: self.loans[file.key]
            for file in manifest.files
            if file.key in self.loans and file.key not in disk and self.loans[file.key].size == file.size
        }
        return LocalFiles(disk, lent)
