"""Whether a model has what was read already: its tensors are read straight into where they belong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def is_there(model: torch.nn.Module, loaded: Mapping[str, Any]) -> bool:
    """Whether all that was read is in the model already, and no module of it has a way of its own to be saved or
    loaded: to load it would only be to copy it onto itself.
    """
    if not _is_plain(model.load_state_dict) or any(_sees_to_it(module) for module in model.modules()):
        return False
    places = {
        one.data_ptr()
        for each in (model.parameters(), model.buffers())
        for one in each
        if type(one) in (torch.Tensor, torch.nn.Parameter) and one.layout is torch.strided
    }
    return all(type(one) is torch.Tensor and one.data_ptr() in places for one in loaded.values())


def _sees_to_it(module: torch.nn.Module) -> bool:
    hooks = ("state_dict", "state_dict_pre", "load_state_dict_pre", "load_state_dict_post")
    methods = (
        "state_dict",
        "_save_to_state_dict",
        "_load_from_state_dict",
        "get_extra_state",
        "set_extra_state",
    )
    return any(getattr(module, f"_{name}_hooks", True) for name in hooks) or not all(
        _is_plain(getattr(module, name)) for name in methods
    )


def _is_plain(method: Any) -> bool:
    """Whether it is torch's own, of its modules."""
    return str(getattr(method, "__module__", None)).startswith("torch.nn.modules.")
