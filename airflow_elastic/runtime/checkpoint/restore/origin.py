"""Begin a run with the weights of another run's checkpoint, or of a file (a warm start)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.runtime.checkpoint.format.compatibility import (
    check_fit,
    check_groups,
    with_room_for_extra,
)
from airflow_elastic.runtime.checkpoint.format.tensor_split import unpacked
from airflow_elastic.runtime.checkpoint.optimizers.states_by_name import request_states
from airflow_elastic.runtime.checkpoint.read.load import ProgressCallback
from airflow_elastic.runtime.checkpoint.read.reader import CheckpointReader
from airflow_elastic.runtime.checkpoint.restore.loaded_by import note_loaded
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer, all_of
from airflow_elastic.runtime.checkpoint.restore.weights import load_file
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful, state_of
from airflow_elastic.runtime.checkpoint.tensors.in_place import load
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.environment import RankEnvironment
from airflow_elastic.runtime.tiers.tiered_files import LocalFiles
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.models.start import Origin

log = logging.getLogger(__name__)

#: Advice when the weights to begin with do not fit.
TO_START = (
    "Start from a checkpoint of the same model, in the same dtypes. Or leave `start_from` out, and let the script load "
    "what fits, before run.restore"
)


class Beginning:
    """Loads what a run starts from into the objects of its script.

    Args:
        origin: what it starts from.
        surroundings: of this rank.
        ranks: this rank among the others.
        procs: ranks of this worker.
        told: called with the bytes that are read so far, and all bytes.
    """

    def __init__(
        self,
        origin: Origin,
        surroundings: RankEnvironment,
        ranks: Collectives,
        procs: int,
        told: ProgressCallback,
    ) -> None:
        self._origin, self._surroundings, self._ranks = origin, surroundings, ranks
        self._procs, self._told = procs, told

    def load(self, objects: Stateful) -> None:
        """Load it. All ranks call this together.

        Raises:
            InvalidInput: it does not fit.
            CheckpointDamaged: it is damaged, or gone.
            StoreError: it cannot be read.
        """
        origin = self._origin
        if origin.file is not None:
            self._load_file(objects.model, origin.file, origin.sha256)
        elif origin.run is not None and origin.step is not None:
            self._load_checkpoint(objects, origin.run, origin.step)
        if self._ranks.rank == 0:
            what = "weights and states of optimizers" if origin.optimizer else "weights"
            log.info("the run starts from %s: %s are loaded, and steps begin at 0", origin.words, what)

    def _load_file(self, model: torch.nn.Module, file: str, sha256: str | None) -> None:
        failed: Exception | None = None
        try:
            load_file(file, model, sha256)
        except InvalidInput as error:
            failed = InvalidInput(f"start_from: {error}")
        except Exception as error:
            failed = error
        # Ranks read by themselves: if one of them cannot, the others must not wait for it in the first step.
        if (first := next((one for one in self._ranks.gather(failed) if one is not None), None)) is not None:
            raise failed or first

    def _load_checkpoint(self, objects: Stateful, run: str, step: int) -> None:
        own = self._surroundings
        # Only the worker's folder for fetched files: copies in memory or on disk are of this run's checkpoints.
        room = WorkerCache(own.restore_folder, self._procs, worker=own.worker, processors=own.processors)
        store = open_store(run)
        reader = _OriginRestorer(store, self._ranks, attempt=own.attempt, room=room, told=self._told)
        wanted = (
            objects if self._origin.optimizer else Stateful(objects.model, (), {}, departed=objects.departed)
        )
        manifest = reader.restore_step(wanted, step)
        if self._ranks.rank == 0:
            note_loaded(store, manifest)


class _OriginRestorer(Restorer):
    """Reads only the model and the states of optimizers. It changes nothing where the checkpoint is."""

    def _fill(self, reader: CheckpointReader, manifest: Manifest, objects: Stateful) -> None:
        whole = state_of(objects, self._ranks.rank)
        what = f"start_from: checkpoint {manifest.step} of {self._store.uri}"
        state = {"model": with_room_for_extra(whole["model"], reader.kinds)}
        wanted: tuple[str, ...] = ("model.",)
        settings = []
        if objects.optimizers:
            wanted = ("model.", "optimizer.")
            state["optimizer"] = whole["optimizer"]
            settings = request_states(state["optimizer"], reader.kinds)
        stored = {name: kind for name, kind in reader.kinds.items() if name.startswith(wanted)}
        check_fit(state, stored, what, TO_START)
        check_groups(state.get("optimizer", {}), len(settings), what, TO_START)
        if any(damages := self._read(reader.plan(state, {}), LocalFiles())):
            raise CheckpointDamaged(all_of(damages))
        load(objects.model, unpacked(state["model"]))
        if objects.optimizers:
            put_back = _own_settings(objects)
            self._load_optimizers(objects, state["optimizer"], settings, what)
            put_back()


def _own_settings(objects: Stateful) -> Callable[[], None]:
    """A function that gives the groups of parameters the settings back that they have now."""

    def copied(value: Any) -> Any:
        return value.clone() if torch.is_tensor(value) else value

    former = [
        (group, {name: copied(value) for name, value in group.items() if name != "params"})
        for one in objects.optimizers
        for group in one.param_groups
    ]

    def put_back() -> None:
        for group, settings in former:
            for name in group.keys() - settings.keys() - {"params"}:
                del group[name]
            group.update(settings)

    return put_back
