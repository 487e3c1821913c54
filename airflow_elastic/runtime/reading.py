"""Reading a run's checkpoint where no training is going on: to measure a model, to export it, to serve it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load

from airflow_elastic.adapters import checkpoints
from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.store import Store
from airflow_elastic.adapters.stores import open_store
from airflow_elastic.runtime.flat_reader import FlatReader, local_files
from airflow_elastic.runtime.restoring import alone_on_purpose
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import InvalidInput, RunMissing
from airflow_elastic.spec.manifest import Manifest

log = logging.getLogger(__name__)

_MODEL = "model."  # below this a checkpoint holds the model's tensors, by their names


def load_model(run: str | Store, model: torch.nn.Module, step: int | None = None) -> Manifest:
    """Load a run's checkpoint into a model, in any process: no other rank and no process group is needed.

    Every byte is compared with the manifest before anything is unpickled. The number of ranks that wrote the checkpoint
    does not matter.

    Args:
        run: the run URI; or the store that lies there, where the environment has no credentials for it.
        model: gets the weights. It has to have exactly the parameters and buffers that were saved.
        step: of the checkpoint. Default: the newest one that is whole; damaged ones are left aside, with a warning.

    Returns:
        The manifest of what was loaded: its step, its metrics, and its files with their checksums.

    Raises:
        RunMissing: there is neither a run nor a checkpoint.
        CheckpointDamaged: there is no such checkpoint, or no whole one.
        InvalidInput: the model is another one than was saved. It is unchanged.
    """
    store = open_store(run) if isinstance(run, str) else run
    if store.get(layout.journal_entry(0)) is None and not checkpoints.steps(store):
        raise RunMissing(f"{store.uri} holds no run, and no checkpoint: check the URI")
    manifest = _whole(store, step) if step is not None else _newest_whole(store)
    with local_files(store, manifest) as folder:
        reader = FlatReader(folder, manifest)
        weights = get_model_state_dict(model)
        _compare(weights, reader, f"checkpoint {manifest.step} of {store.uri}")
        state = {"model": {name: _room_for(value) for name, value in weights.items()}}
        with alone_on_purpose():
            load(state, storage_reader=reader, no_dist=True)
    set_model_state_dict(model, state["model"], options=StateDictOptions(strict=True))
    return manifest


def _newest_whole(store: Store) -> Manifest:
    while True:
        steps = checkpoints.steps(store)
        for step in reversed(steps):
            try:
                return _whole(store, step)
            except CheckpointDamaged as error:
                log.warning("%s; trying the one before it", error)
        # Of a run that goes on, what was listed may have been removed meanwhile for something newer.
        if steps == checkpoints.steps(store):
            none = f"none of the checkpoints {steps} is whole" if steps else "there is no checkpoint"
            raise CheckpointDamaged(f"{none} in {store.uri}: look with `airflow-elastic verify`")


def _whole(store: Store, step: int) -> Manifest:
    manifest = checkpoints.read(store, step)
    if damage := checkpoints.problems(store, manifest):
        raise CheckpointDamaged(f"checkpoint {step} of {store.uri} is damaged: {'; '.join(damage)}")
    return manifest


def _compare(weights: Mapping[str, Any], reader: FlatReader, what: str) -> None:
    """Refuse a model that is not the one that was saved: torch would leave out in silence what it does not know."""
    stored = {
        name.removeprefix(_MODEL): value
        for name, value in reader.read_metadata().state_dict_metadata.items()
        if name.startswith(_MODEL)
    }
    differ = [f"the model has no {name}" for name in sorted(stored.keys() - weights.keys())]
    differ += [f"the checkpoint has no {name}" for name in sorted(weights.keys() - stored.keys())]
    for name in sorted(weights.keys() & stored.keys()):
        ours, theirs = (
            tuple(getattr(one, "shape", getattr(one, "size", ()))) for one in (weights[name], stored[name])
        )
        if ours != theirs:
            differ.append(f"{name} is {ours} in the model and {theirs} in the checkpoint")
    if differ:
        more = f"; and {len(differ) - 5} more" if len(differ) > 5 else ""
        raise InvalidInput(f"{what} is of another model: {'; '.join(differ[:5])}{more}")


def _room_for(value: Any) -> Any:
    """Loading writes into this: the model itself is only touched when everything is there."""
    return torch.empty_like(value) if isinstance(value, torch.Tensor) else value
