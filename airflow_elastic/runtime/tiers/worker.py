"""The part of `agent.worker.Worker` that the tiers use: the agent is in a layer above them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from airflow_elastic.adapters.records.job_files import JobFiles, JobRecord, Members
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.runtime.tiers.disk.copies import WorkerDisk
from airflow_elastic.runtime.tiers.peers.buddy_memory import BuddyMemory
from airflow_elastic.runtime.tiers.peers.connection import Buddy
from airflow_elastic.runtime.tiers.shared_memory import StagingSlots


class TierWorker(Protocol):
    """A worker, as the threads that write staged states see it."""

    files: JobFiles
    record: JobRecord
    index: int
    address: str
    store: Store
    members: Members | None
    slots: StagingSlots
    keeper: BuddyMemory | None
    neighbour: Buddy | None
    disk: WorkerDisk | None
    stop_at: float | None

    @property
    def run(self) -> str:
        """Identity of the run."""
        ...

    @property
    def attempt(self) -> int:
        """Number of the attempt."""
        ...

    @property
    def generation(self) -> int:
        """Number of the rendezvous that its ranks belong to."""
        ...

    def pages(self) -> list[Path]:
        """The shared pages of its ranks."""
        ...

    def tell_ranks(self, words: Mapping[int, float]) -> None:
        """Write these words into the pages of its ranks."""
        ...

    def tell_unsaved(self, step: int, reason: str) -> bool:
        """Report a state that could not be written. Returns whether the report was stored."""
        ...

    def tell_unpruned(self, step: int, reason: str) -> None:
        """Report why nothing was removed."""
        ...

    def tell_refused(self, step: int, reason: str) -> None:
        """Report a copy of a state that is damaged, and so is not used."""
        ...

    def verified(self) -> tuple[int, float] | None:
        """The step of the checkpoint that its ranks have read whole, from storage only, and when; or None."""
        ...

    def superseded(self) -> bool:
        """Whether there is a newer generation than its ranks'."""
        ...

    def stop(self) -> None:
        """Note that the worker must end."""
        ...
