"""Saving and restoring: torch's distributed checkpoint for the bytes, our manifest for the truth.

A save writes into a folder that no other attempt or generation ever writes into. When every rank has written and every
file is where it belongs, rank 0 writes the manifest, exclusively: from then on the checkpoint exists. A restore reads
the newest manifest, compares every byte with it, and only then lets torch open (and unpickle) the files.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import airflow_elastic
from airflow_elastic.adapters import checkpoints
from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.durable import fsync_folder
from airflow_elastic.adapters.reports import newest_fence
from airflow_elastic.adapters.store import Store
from airflow_elastic.runtime import randomness
from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import ElasticError, StoreError
from airflow_elastic.spec.manifest import Manifest, StoredFile

log = logging.getLogger(__name__)


class Superseded(ElasticError):
    """A newer attempt of the run has begun: this one may not write any more."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where in the data a run stands: `samples` since step 0, `offset` of them in `epoch`."""

    epoch: int = 0
    offset: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class Stateful:
    """What a script wants saved: a model with its optimizer, and further objects with state_dict/load_state_dict."""

    model: torch.nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    others: Mapping[str, Any]


@contextmanager
def alone_on_purpose() -> Iterator[None]:
    """Leaves out torch's warning at each save and load of a process without siblings: there need be none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


class Checkpointer:
    """Checkpoints of one rank of one attempt.

    Args:
        store: where the run lies.
        ranks: this rank among the others.
        attempt: number of the attempt.
        generation: number of its rendezvous.
        keep_last: committed checkpoints that stay.
    """

    def __init__(self, store: Store, ranks: Ranks, *, attempt: int, generation: int, keep_last: int) -> None:
        self._store, self._ranks = store, ranks
        self._attempt, self._generation, self._keep_last = attempt, generation, keep_last

    def save(
        self, objects: Stateful, step: int, position: Position, *, reason: str, metrics: Mapping[str, float]
    ) -> None:
        """Save and commit step `step`. All ranks call this together; returns when the checkpoint exists.

        Raises:
            Superseded: a newer attempt has begun; nothing was committed.
            StoreError: the storage failed; nothing was committed.
        """
        data = layout.checkpoint_data(step, self._attempt, self._generation)
        final = self._store.local_path(data.rstrip("/"))
        with tempfile.TemporaryDirectory(prefix="elastic-save-") as temporary:
            folder = final or Path(temporary)
            if self._ranks.rank == 0 and final is not None:
                shutil.rmtree(final, ignore_errors=True)  # left by a save of this very step that failed
                final.mkdir(parents=True)
            self._ranks.barrier()
            writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)
            with alone_on_purpose():
                save(_state_of(objects, self._ranks), storage_writer=writer, no_dist=self._ranks.alone)
            fsync_folder(folder)  # torch syncs the files, but not their names
            mine = self._mine(folder)
            entries = []
            for path in mine:
                key = f"{data}{path.name}"
                entries.append(StoredFile(key, path.stat().st_size, checkpoints.checksum(path)))
                if final is None:
                    self._store.upload(key, path)
        files = sorted((f for part in self._ranks.gather(entries) for f in part), key=lambda file: file.key)
        manifest = Manifest(
            step=step,
            attempt=self._attempt,
            generation=self._generation,
            world_size=self._ranks.world_size,
            created_at=time.time(),
            data=data,
            files=tuple(files),
            epoch=position.epoch,
            samples=position.samples,
            offset=position.offset,
            metrics=dict(metrics),
            reason=reason,
            versions={"airflow_elastic": airflow_elastic.__version__, "torch": torch.__version__},
        )
        trouble = self._ranks.from_first(lambda: self._commit(manifest))
        if trouble:
            raise Superseded(trouble)

    def _commit(self, manifest: Manifest) -> str | None:
        """On rank 0: make the checkpoint exist, and let old ones go. Returns why not, if not."""
        fence = newest_fence(self._store)
        if fence > self._attempt:
            return f"attempt {fence} has begun: attempt {self._attempt} commits nothing any more"
        if not checkpoints.commit(self._store, manifest):
            log.info("step %d was committed before, which is as good", manifest.step)
        checkpoints.prune(self._store, self._keep_last)
        return None

    def _mine(self, folder: Path) -> list[Path]:
        """The files that this rank has written."""
        rank = self._ranks.rank
        mine = list(folder.glob(f"__{rank}_*"))
        return [*mine, folder / ".metadata"] if rank == 0 else mine

    def restore(self, objects: Stateful) -> Manifest | None:
        """Load the newest checkpoint that is what was committed, into `objects`; None where there is none.

        A damaged one is left aside, with a warning, and the one before it is used. All ranks call this together.

        Raises:
            CheckpointDamaged: there are checkpoints, and not one of them is whole.
        """
        steps = self._ranks.from_first(self._take_stock)
        for step in reversed(steps):
            try:
                manifest = checkpoints.read(self._store, step)
            except CheckpointDamaged as error:
                log.warning("%s; trying the one before it", error)
                continue
            damage = self._verify(manifest)
            if not damage:
                self._load(manifest, objects)
                return manifest
            log.warning("checkpoint %d is damaged, trying the one before it: %s", step, "; ".join(damage))
        if steps:
            raise CheckpointDamaged(
                f"none of the checkpoints {steps} of {self._store.uri} is whole: look with `airflow-elastic verify`; "
                "to train from the beginning, use another run URI"
            )
        return None

    def _take_stock(self) -> list[int]:
        """On rank 0: the steps there are; what earlier attempts left half-saved is removed, as none of them lives."""
        try:
            removed = checkpoints.remove_uncommitted(self._store, self._attempt)
        except StoreError as error:
            log.warning(
                "files of saves that were cut off could not be removed, they only take space: %s", error
            )
        else:
            if removed:
                log.info("removed %d files of saves that were cut off", removed)
        return checkpoints.steps(self._store)

    def _verify(self, manifest: Manifest) -> list[str]:
        """Compare every byte with the manifest; ranks share the files among them."""
        rank, world = self._ranks.rank, self._ranks.world_size
        mine = checkpoints.problems(self._store, manifest, only=lambda i: i % world == rank)
        return [problem for part in self._ranks.gather(mine) for problem in part]

    def _load(self, manifest: Manifest, objects: Stateful) -> None:
        with tempfile.TemporaryDirectory(prefix="elastic-load-") as temporary:
            folder = self._store.local_path(manifest.data.rstrip("/"))
            if folder is None:
                folder = Path(temporary)
                for file in manifest.files:
                    self._store.download(file.key, folder / file.key.removeprefix(manifest.data))
            reader = FileSystemReader(folder)
            stored = set(reader.read_metadata().state_dict_metadata)
            state = _state_of(objects, self._ranks)
            random_key = f"random.{self._ranks.rank}"
            if not any(key.startswith(random_key) for key in stored):
                del state[random_key]  # a rank that was not there when this was saved keeps its own seed
            with alone_on_purpose():
                load(state, storage_reader=reader, no_dist=self._ranks.alone)
            set_state_dict(
                objects.model,
                objects.optimizers,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
            for name, other in objects.others.items():
                other.load_state_dict(state[f"other.{name}"])
            if random_key in state:
                randomness.put_back(state[random_key])


def _state_of(objects: Stateful, ranks: Ranks) -> dict[str, Any]:
    model, optimizer = get_state_dict(objects.model, objects.optimizers)
    return {
        "model": model,
        "optimizer": optimizer,
        **{f"other.{name}": other.state_dict() for name, other in objects.others.items()},
        # Keyed by rank: objects under one key would be taken for copies of one another.
        f"random.{ranks.rank}": randomness.capture(),
    }
