"""A model's tensors are read straight into where they belong: where that is all, it need not be loaded after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from airflow_elastic.runtime.checkpoint.tensors.parameter_names import set_weights


def load(model: torch.nn.Module, loaded: Mapping[str, Any]) -> None:
    """Have a model be as what was read, by the names of `parameter_names.weights_of`."""
    if is_there(model, loaded):
        settle(model)
    else:
        set_weights(model, loaded)


def is_there(model: torch.nn.Module, loaded: Mapping[str, Any]) -> bool:
    """Whether all that was read is in the model already, and no module of it has a way of its own to be saved or
    loaded, but fully_shard's (`settle`): to load it would only be to copy it onto itself.
    """
    if not _is_plain(model.load_state_dict) or any(_sees_to_it(module) for module in model.modules()):
        return False
    places = {_place(one) for each in (model.parameters(), model.buffers()) for one in each} - {None}
    return all(_place(one) in places for one in loaded.values())


def _place(value: Any) -> int | None:
    """Where a tensor, or this rank's part of one, lies in memory; None where that is not known to be all of it."""
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
    """Have fully_shard find the parameters that a model has now, as it does when one is loaded: they may not be those
    any more that it used last.
    """
    for module in model.modules():
        for hook in module._load_state_dict_post_hooks.values():
            if _is_fsdps(hook):
                hook(module, None)


def _is_fsdps(hook: Any) -> bool:
    """Whether it is one of fully_shard's: those before have a model sharded, those after do what `settle` says."""
    return str(getattr(hook, "__module__", None)).startswith("torch.distributed.fsdp._fully_shard.")


def _is_plain(method: Any) -> bool:
    """Whether it is torch's own, of its modules."""
    return str(getattr(method, "__module__", None)).startswith("torch.nn.modules.")
