"""Read a run's checkpoint outside of training: to evaluate, export or serve a model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.runtime.checkpoint.format.compatibility import TO_READ, check_fit, with_room_for_extra
from airflow_elastic.runtime.checkpoint.format.tensor_split import packed, unpacked
from airflow_elastic.runtime.checkpoint.read.load import ProgressCallback, no_progress
from airflow_elastic.runtime.checkpoint.read.reader import CheckpointReader
from airflow_elastic.runtime.checkpoint.restore.available import check_run, read_indexes
from airflow_elastic.runtime.checkpoint.restore.loaded_by import note_loaded
from airflow_elastic.runtime.checkpoint.tensors.parameter_names import set_weights, weights_of
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.errors import InvalidInput, RunMissing

log = logging.getLogger(__name__)

_MODEL = "model."  # below this a checkpoint holds the model's tensors, by their names


def load_model(run: str | Store, model: torch.nn.Module, step: int | None = None) -> Manifest:
    """Load a run's checkpoint into a model, in any process: no other rank and no process group is needed.

    Every byte is compared with its checksum before it is unpickled. The number of ranks that wrote the checkpoint
    does not matter. If another run or a task of Airflow loads it, `airflow-elastic checkpoint list` names that.

    Args:
        run: the run URI, or a store for it if the environment has no credentials.
        model: gets the weights. It must have exactly the parameters and buffers that were saved, of the same dtypes.
            For another dtype, convert it after it is loaded.
        step: of the checkpoint. Default: the newest one that is whole; damaged ones are skipped, with a warning.

    Returns:
        The manifest of the checkpoint: its step, its metrics, and its files with their checksums.

    Raises:
        RunMissing: there is neither a run nor a checkpoint.
        CheckpointDamaged: there is no such checkpoint, or no whole one.
        InvalidInput: the checkpoint was copied there from another run, or is of another model or dtype. Or it holds a
            value of a type that is not trusted (`torch.serialization.add_safe_globals`). The model is unchanged.
    """

    def room(reader: CheckpointReader, what: str) -> dict[str, Any]:
        stored = {name: kind for name, kind in reader.kinds.items() if name.startswith(_MODEL)}
        weights = with_room_for_extra(packed(weights_of(model)), stored)
        check_fit({"model": weights}, stored, what, TO_READ)
        # The model itself only changes after everything has been read.
        return {name: torch.empty_like(one) if torch.is_tensor(one) else one for name, one in weights.items()}

    manifest, weights = _read(run, step, room)
    set_weights(model, weights)
    return manifest


def read_weights(
    run: str | Store, step: int | None = None, told: ProgressCallback = no_progress
) -> tuple[Manifest, dict[str, Any]]:
    """Read the tensors of a model from a run's checkpoint without a model: whole tensors by name.

    `told` is called with the bytes that are read so far, and all bytes. Other args and errors are those of
    `load_model`.
    """

    def room(reader: CheckpointReader, what: str) -> dict[str, Any]:
        names = [name for name in reader.kinds if name.startswith(_MODEL)]
        return {name.removeprefix(_MODEL): reader.room(name) for name in names}

    return _read(run, step, room, told)


_Room = Callable[[CheckpointReader, str], dict[str, Any]]


def _read(
    run: str | Store, step: int | None, room: _Room, told: ProgressCallback = no_progress
) -> tuple[Manifest, dict[str, Any]]:
    store = open_store(run) if isinstance(run, str) else run
    if store.get(layout.journal_entry(0)) is None and not checkpoints.steps(store):
        raise RunMissing(f"{store.uri} holds no run, and no checkpoint: check the URI")
    if step is None:
        return _read_newest(store, room, told)
    try:
        return _read_step(store, step, room, told)
    except CheckpointDamaged as error:
        if step in (there := checkpoints.steps(store)):
            raise
        raise CheckpointDamaged(f"{error}; there are: {', '.join(map(str, there)) or 'none'}") from error


def _read_newest(store: Store, room: _Room, told: ProgressCallback) -> tuple[Manifest, dict[str, Any]]:
    while True:
        steps = checkpoints.steps(store)
        for step in reversed(steps):
            try:
                return _read_step(store, step, room, told)
            except CheckpointDamaged as error:
                log.warning("%s; trying the one before it", error)
        # A run that is going on may have removed a listed checkpoint meanwhile, after it saved a newer one.
        if steps == checkpoints.steps(store):
            none = f"none of the checkpoints {steps} is whole" if steps else "there is no checkpoint"
            raise CheckpointDamaged(f"{none} in {store.uri}: look with `airflow-elastic verify`")


def _read_step(
    store: Store, step: int, room: _Room, told: ProgressCallback
) -> tuple[Manifest, dict[str, Any]]:
    manifest = checkpoints.read(store, step)
    what = f"checkpoint {step} of {store.uri}"
    check_run(
        store,
        manifest,
        f"To read one of this run's own, name another step, or remove {layout.manifest(step)}",
    )
    try:
        reader = CheckpointReader(manifest, read_indexes(store, manifest))
        state = {"model": room(reader, what)}
        try:
            reader.plan(state, {}).read(store, told)
        except InvalidInput as error:
            raise InvalidInput(f"{what} cannot be read: {error}") from error
    except CheckpointDamaged as error:
        raise CheckpointDamaged(f"{what} is damaged: {error}") from error
    note_loaded(store, manifest)
    return manifest, unpacked(state["model"])
