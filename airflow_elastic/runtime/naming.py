"""What tensors of a model are called in a checkpoint: as in its state dict, without the names of what wraps it."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import _get_fqns, _state_dict_fn, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel


def weights_of(model: torch.nn.Module) -> dict[str, Any]:
    """A model's state dict by these names: what torch's `get_model_state_dict` gives, in half the time, for which
    training waits. Tensors are the model's own, not copies.
    """
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        return get_model_state_dict(model)  # the first FSDP has to be asked for shards
    state = _state_dict_fn(
        model, "state_dict"
    )()  # the model's own, where a script has put torch's in its place
    return {_name(model, key): value for key, value in state.items()}


def names_of(model: torch.nn.Module) -> dict[torch.Tensor, str]:
    """Each parameter's name.

    A model that FSDP2 shards has others after a forward pass, its root's not being sharded again: as for a state dict,
    it has those that optimizers have.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return {each: _name(model, name) for name, each in model.named_parameters()}


def buffers_of(model: torch.nn.Module) -> frozenset[str]:
    """Names of the buffers, e.g. a batch norm's means; all of them, where modules share one."""
    return frozenset(_name(model, name) for name, _ in model.named_buffers(remove_duplicate=False))


def _name(model: torch.nn.Module, key: str) -> str:
    return next(iter(_get_fqns(model, key)))
