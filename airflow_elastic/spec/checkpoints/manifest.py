"""The manifest of a checkpoint. It is written last and exclusively, and makes the checkpoint exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.phases import PhaseRecord

#: Version of a checkpoint's form, for its manifest and its indexes. Readers refuse versions not listed here.
MANIFEST_VERSION = 4
#: Before 3 an index had no block size. Before 4 there were no phases and no notes.
READABLE_VERSIONS = (2, 3, MANIFEST_VERSION)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a checkpoint: key below the run URI, size in bytes, checksums by algorithm, as hex digits."""

    key: str
    size: int
    checksums: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a reader needs before it opens any file.

    Attributes:
        version: form of this document.
        step: optimizer steps done.
        attempt: the attempt that wrote it.
        generation: its rendezvous within the attempt.
        world_size: ranks that wrote it.
        created_at: epoch seconds.
        format: how to read the files. `flat`: tensors one after another, and an index of them as JSON.
        data: the folder of the files.
        files: every file, with its checksums.
        epoch: epoch of the next sample, in the current phase.
        samples: samples consumed since step 0, each once.
        offset: samples of the current epoch already consumed.
        metrics: numbers that the script gave with the save.
        reason: why it was saved: `steps`, `seconds`, `memory`, `disk`, `script`, `requested`,
            `breakpoint`, `final`.
        versions: of the libraries that wrote it.
        journal: number of the run's newest journal entry when this was committed; -1 where it has none.
        run: identity of the run (`adapters.records.journal.identity`); empty if it was committed outside of a run.
        phases: the run's trainings so far, in order; the last one was at work when this was saved. None in manifests of
            earlier releases, which had one training without a name.
        notes: the script's own values, plain JSON.
    """

    step: int
    attempt: int
    generation: int
    world_size: int
    created_at: float
    data: str
    files: tuple[StoredFile, ...]
    version: int = MANIFEST_VERSION
    format: str = "flat"
    epoch: int = 0
    samples: int = 0
    offset: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    reason: str = "steps"
    versions: Mapping[str, str] = field(default_factory=dict)
    journal: int = -1
    run: str = ""
    phases: tuple[PhaseRecord, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def saved_by(self) -> tuple[int, int] | None:
        """Attempt and generation of the ranks that saved it; None if agents assembled it from older states."""
        recovered = self.data.rstrip("/").endswith(layout.RECOVERED)
        return None if recovered else (self.attempt, self.generation)
