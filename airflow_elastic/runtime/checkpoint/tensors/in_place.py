"""Checkpoints are read straight into a model's tensors. A model without loading code of its own is complete then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from airflow_elastic.runtime.checkpoint.tensors.parameter_names import set_weights


def load(model: torch.nn.Module, loaded: Mapping[str, Any]) -> None:
    """Load what was read into a model, by the names of `parameter_names.weights_of`, unless it is there already."""
    if is_there(model, loaded):
        settle(model)
    else:
        set_weights(model, loaded)


def is_there(model: torch.nn.Module, loaded: Mapping[str, Any]) -> bool:
    """Whether loading would only copy each tensor onto itself.

    All that was read must be in the model's own memory. No module may have hooks or methods of its own for saving or
    loading; only fully_shard's are allowed, which `settle` calls.
    """
    if not _is_plain(model.load_state_dict) or any(_sees_to_it(module) for module in model.modules()):
        return False
    places = {_place(one) for each in (model.parameters(), model.buffers()) for one in each} - {None}
    return all(_place(one) in places for one in loaded.values())


def _place(value: Any) -> int | None:
    """The address of a tensor, or of this rank's part of it; None if its memory may be in several places."""
    if isinstance(value, DTensor):
        value = value.to_local()
    plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
    return value.data_ptr() if plain else None


def _sees_to_it(module: torch.nn.Module) -> bool:
    hooks = ("state_dict", "state_dict_pre", "load_state_dict_pre", "load_state_dict_post")
    methods = (
        "state_dict",
        "_save_to_state_dict",
        "_load_from_state_dict",
        "get_extra_state",
        "set_extra_state",
    )
    kinds: list[dict[int, Any] | None] = [getattr(module, f"_{name}_hooks", None) for name in hooks]
    return not (
        all(each is not None and all(map(_is_fsdps, each.values())) for each in kinds)
        and all(_is_plain(getattr(module, name)) for name in methods)
    )


def settle(model: torch.nn.Module) -> None:
    """Have fully_shard look up the model's parameters again, as it does after a load: they may have been replaced."""
    for module in model.modules():
        for hook in module._load_state_dict_post_hooks.values():
            if _is_fsdps(hook):
                hook(module, None)


def _is_fsdps(hook: Any) -> bool:
    """Whether fully_shard registered this hook. Its pre-hooks reshard the model; for its post-hooks see `settle`."""
    return str(getattr(hook, "__module__", None)).startswith("torch.distributed.fsdp._fully_shard.")


def _is_plain(method: Any) -> bool:
    """Whether it is a method of `torch.nn.Module` or of one of torch's modules."""
    return str(getattr(method, "__module__", None)).startswith("torch.nn.modules.")
