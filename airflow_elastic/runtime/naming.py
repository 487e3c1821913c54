"""What tensors of a model are called in a checkpoint: as in its state dict, without the names of what wraps it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper
from torch.distributed.checkpoint.state_dict import _get_fqns, _state_dict_fn, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from airflow_elastic.spec.errors import InvalidInput

#: What names of a compiled model have in them. To know its class takes a second of imports.
_COMPILED = "_orig_mod."

#: What is put before the names of a model that is wrapped.
_WRAPPERS = ("module.", _COMPILED)

#: Modules below which names are others than what leads there.
_RENAMING = (DistributedDataParallel, FullyShardedDataParallel, ActivationWrapper)


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """What DDP is around, where nothing else is in it: names with it are those without it, and it may have ways of its
    own to be saved.
    """
    return model.get_submodule("module") if _is_shell(model) else model


@torch.no_grad()  # modules may compute what they keep
def weights_of(model: torch.nn.Module) -> dict[str, Any]:
    """A model's state dict by these names: what torch's `get_model_state_dict` gives, in half the time, for which
    training waits. Tensors are the model's own, not copies.

    Raises:
        InvalidInput: it has none, or two tensors would have the same name.
    """
    model = unwrapped(model)
    kinds = _kinds(model)
    if any(issubclass(kind, FullyShardedDataParallel) for kind in kinds):
        return get_model_state_dict(model)  # the first FSDP has to be asked for shards
    # The model's own, where a script has put torch's in its place.
    state = _state_dict_fn(model, "state_dict")()
    if not state:
        raise InvalidInput(
            f"the model ({type(model).__name__}) has an empty state dict: there is nothing to save of it. Give "
            "run.restore the one whose parameters are trained"
        )
    names = _names(model, state, kinds)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InvalidInput(
            f"the model ({type(model).__name__}) has two tensors that would both be saved as {twice[0]}, without the "
            "names of what wraps their modules: rename one of the modules"
        )
    return dict(zip(names, state.values(), strict=True))


def names_of(model: torch.nn.Module) -> dict[torch.Tensor, str]:
    """Each parameter's name.

    A model that FSDP2 shards has others after a forward pass, its root's not being sharded again: as for a state dict,
    it has those that optimizers have.
    """
    model = unwrapped(model)
    kinds = _kinds(model)
    if any(issubclass(kind, FSDPModule) for kind in kinds):
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
    own = dict(model.named_parameters())
    return dict(zip(own.values(), _names(model, own, kinds), strict=True))


def named_as(weights: dict[str, Any], model: torch.nn.Module, names: Collection[str]) -> dict[str, Any]:
    """Weights of a file, by the names of the model's own.

    Without what DDP and torch.compile put before all names of a model that they wrap. Where the model has a tensor by
    several names (tied weights), and the file by some of these, it is there by all.
    """
    while prefix := next((one for one in _WRAPPERS if _all_begin(weights, one)), None):
        if any(name.startswith(prefix) for name in names):
            break
        weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    found = dict(weights)
    for tied in _tied(model):
        if there := sorted(tied & weights.keys()):
            found |= dict.fromkeys(tied.intersection(names) - weights.keys(), weights[there[0]])
    return found


def _all_begin(weights: dict[str, Any], prefix: str) -> bool:
    return bool(weights) and all(isinstance(name, str) and name.startswith(prefix) for name in weights)


def _tied(model: torch.nn.Module) -> list[set[str]]:
    """Names of each parameter and buffer that has several."""
    names: dict[int, set[str]] = defaultdict(set)
    model = unwrapped(model)
    # A model's own way to tell them may not know of duplicates.
    tensors = torch.nn.Module.named_parameters, torch.nn.Module.named_buffers
    own = [one for each in tensors for one in each(model, remove_duplicate=False)]
    for name, (_, one) in zip(_names(model, [name for name, _ in own], _kinds(model)), own, strict=True):
        names[id(one)].add(name)
    return [each for each in names.values() if len(each) > 1]


def _names(
    model: torch.nn.Module, keys: Collection[str], kinds: Collection[type[torch.nn.Module]]
) -> list[str]:
    """What these are called. To ask torch for each takes as long as to copy a megabyte, and training waits: it is asked
    only where modules of these classes may have other names than those that lead to them.
    """
    renaming = (issubclass(kind, _RENAMING) or hasattr(kind, "_fqn_modifiers") for kind in kinds)
    if any(renaming) or any(_COMPILED in key for key in keys):
        # The first FSDP has several for one, in no order.
        return [min(_get_fqns(model, key)) for key in keys]
    if isinstance(model, DistributedDataParallel):
        return [key.removeprefix("module.") for key in keys]
    return [*keys]


def _kinds(model: torch.nn.Module) -> set[type[torch.nn.Module]]:
    """Classes of its modules, but for DDP around all others: there are few, and to ask each module takes longer."""
    root = model if isinstance(model, DistributedDataParallel) else None
    return {type(module) for module in model.modules() if module is not root}


def _is_shell(model: torch.nn.Module) -> bool:
    """Whether it is a DDP that adds nothing to the state of what it is around."""
    if not isinstance(model, DistributedDataParallel) or len(model._modules) > 1:
        return False
    hooks = (model._state_dict_hooks, model._state_dict_pre_hooks)
    loading = (model._load_state_dict_pre_hooks, model._load_state_dict_post_hooks)
    extra = type(model).get_extra_state is not torch.nn.Module.get_extra_state
    return not (extra or any([model._parameters, model._buffers, *hooks, *loading]))
