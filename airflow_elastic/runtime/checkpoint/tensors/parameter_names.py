"""The names of a model's tensors in a checkpoint: those of its state dict, without the prefixes of wrappers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    _get_fqns,
    _state_dict_fn,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from airflow_elastic.runtime.checkpoint.tensors.model_walk import ModelWalk
from airflow_elastic.runtime.checkpoint.tensors.overlap import each_apart
from airflow_elastic.spec.errors import InvalidInput

#: Parts of names that torch.compile and activation checkpointing add, and torch removes.
_COMPILED, _CHECKPOINTED = "_orig_mod", "_checkpoint_wrapped_module."

#: What is kept of a model's structure: the names of its state dict, and of its parameters.
_STATE, _PARAMETERS = "names of the state dict", "names of the parameters"

#: Prefixes of all names of a wrapped model.
_WRAPPERS = ("module.", f"{_COMPILED}.")


@torch.no_grad()  # modules may compute values for their state dict
def weights_of(
    model: torch.nn.Module, *, may_be_empty: bool = False, walk: ModelWalk | None = None
) -> dict[str, Any]:
    """A model's state dict by these names. Tensors are the model's own, not copies.

    torch's `get_model_state_dict` returns the same, but takes several times as long, and training waits for it.

    Args:
        model: the model.
        may_be_empty: whether it need not have tensors.
        walk: a look at the model, if there is one.

    Raises:
        InvalidInput: it is empty, or two tensors would have the same name.
    """
    known = {} if walk is None or walk.structure is None else walk.structure.words
    if walk is not None and _STATE in known and (plain := walk.state_dict()) is not None:
        return dict(zip(known[_STATE], plain.values(), strict=True))
    kinds = _kinds(model)
    if _has(kinds, FullyShardedDataParallel):
        return get_model_state_dict(model)  # it has FSDP1 return shards
    # The class's method, even if torch's `_patch_model_state_dict` has replaced it on the object.
    state = _state_dict_fn(model, "state_dict")()
    if not state and not may_be_empty:
        raise InvalidInput(
            f"the model ({type(model).__name__}) has an empty state dict, so there is nothing to save. Give "
            "run.restore the model whose parameters are trained"
        )
    names = _names(model, state, kinds)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InvalidInput(
            f"the model ({type(model).__name__}) has two tensors that would both be saved as {twice[0]}, because names "
            "of wrappers are left out: rename one of their modules"
        )
    if walk is not None and (plain := walk.state_dict()) is not None and _same_memory(plain, state):
        known[_STATE] = names  # from now on torch need not be asked
    return dict(zip(names, state.values(), strict=True))


@torch.no_grad()
def set_weights(model: torch.nn.Module, weights: Mapping[str, Any]) -> None:
    """Load weights into a model, by the names of `weights_of`.

    Unlike torch's `set_model_state_dict`, this also loads a DDP with tensors beside its `module`, and modules whose
    state dict uses other names than their attributes.

    Raises:
        RuntimeError: the names or shapes are not the model's.
    """
    kinds = _kinds(model)
    if _has(kinds, FullyShardedDataParallel):
        set_model_state_dict(model, dict(weights))
        return
    keys = [*_state_dict_fn(model, "state_dict")()]
    own = dict(zip(_names(model, keys, kinds), keys, strict=True))
    state = {own.get(name, name): value for name, value in weights.items()}
    own_way = _state_dict_fn(model, "load_state_dict")
    with each_apart(model):
        if isinstance(own_way, partial):  # torch has bound `self` by keyword
            own_way(state_dict=state)
        else:  # a script's method may name its parameter otherwise
            own_way(state)


def is_kept_by_torch(model: torch.nn.Module) -> bool:
    """Whether its class leaves saving and loading to torch: `state_dict` and `load_state_dict` are torch's methods.

    Its submodules may override them. A method that torch has set on the object itself, as for `get_model_state_dict`,
    does not count.
    """
    methods = (_state_dict_fn(model, name) for name in ("state_dict", "load_state_dict"))
    functions = (one.func if isinstance(one, partial) else one for one in methods)
    return all(str(getattr(one, "__module__", None)).startswith("torch.") for one in functions)


def _same_memory(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether both have the same tensors by the same names."""
    try:
        return [*one] == [*other] and all(_place(one[key]) == _place(other[key]) for key in one)
    except (RuntimeError, ValueError, AttributeError):  # without memory
        return False


def _place(value: Any) -> tuple[Any, ...]:
    own = value._local_tensor if isinstance(value, DTensor) else value
    return type(value), value.shape, own.dtype, own.stride(), own.data_ptr()


def names_of(model: torch.nn.Module, walk: ModelWalk | None = None) -> dict[torch.Tensor, str]:
    """Each parameter's name.

    After a forward pass, FSDP2 leaves the root module unsharded, with other parameters. So the model is resharded here,
    as for a state dict: then it has the parameters that optimizers hold.
    """
    walk = walk or ModelWalk(model)
    keys, parameters = walk.named_parameters()
    known = {} if walk.structure is None else walk.structure.words
    if (names := known.get(_PARAMETERS)) is None:
        known[_PARAMETERS] = names = _names(model, keys, _kinds(model))
    return dict(zip(parameters, names, strict=True))


def named_as(weights: dict[str, Any], model: torch.nn.Module, names: Collection[str]) -> dict[str, Any]:
    """Weights of a file, by the model's names.

    Prefixes that DDP and torch.compile add to all names are removed. If the model has a tensor under several names
    (tied weights) and the file has one of them, the result has all.
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


def names_now(model: torch.nn.Module, keys: Collection[str]) -> dict[str, str]:
    """The names that `weights_of` uses, by the names in a checkpoint.

    Former releases saved the prefixes of wrappers, too. A name that the model does not know stays as it is.
    """
    current = [*_state_dict_fn(model, "state_dict")()]
    known = dict(zip(current, _names(model, current, _kinds(model)), strict=True))
    own = {*known.values()}
    found = {key: key if key in own else known.get(key) or _without_wrappers(key, own) for key in keys}
    return found if len({*found.values()}) == len(found) else {key: key for key in keys}


def _without_wrappers(key: str, own: Collection[str]) -> str:
    """The name in `own` that equals this one without the parts that wrappers add; the key itself if there is none."""
    words = [word for word in key.split(".") if word not in (_COMPILED, _CHECKPOINTED.removesuffix("."))]
    first = ".".join(words[1:] if words[0] == "module" else words)
    every = ".".join(word for word in words if word != "module")
    return next((name for name in (".".join(words), first, every) if name in own), key)


def _all_begin(weights: dict[str, Any], prefix: str) -> bool:
    return bool(weights) and all(isinstance(name, str) and name.startswith(prefix) for name in weights)


def _tied(model: torch.nn.Module) -> list[set[str]]:
    """Names of each parameter and buffer that has several."""
    names: dict[int, set[str]] = defaultdict(set)
    # A model may override these methods without `remove_duplicate`.
    tensors = torch.nn.Module.named_parameters, torch.nn.Module.named_buffers
    own = [one for each in tensors for one in each(model, remove_duplicate=False)]
    for name, (_, one) in zip(_names(model, [name for name, _ in own], _kinds(model)), own, strict=True):
        names[id(one)].add(name)
    return [each for each in names.values() if len(each) > 1]


def _names(
    model: torch.nn.Module, keys: Collection[str], kinds: Collection[type[torch.nn.Module]]
) -> list[str]:
    """The names of these keys in a checkpoint.

    To resolve each key takes as long as to copy a part of a megabyte, and training waits. So that is done only if a
    submodule may be wrapped.
    """
    if _has(kinds, FullyShardedDataParallel):
        return [min(_get_fqns(model, key)) for key in keys]  # a set, as tied weights have several
    if _has(kinds, DistributedDataParallel) or any(map(_is_wrapped, keys)):
        return [_name(model, key) if isinstance(key, str) else key for key in keys]
    if isinstance(model, DistributedDataParallel):
        return [key.removeprefix("module.") for key in keys]
    return [*keys]


def _is_wrapped(key: Any) -> bool:
    """Whether a wrapper has added to this key. A module with a `state_dict` of its own may use numbers as keys."""
    return isinstance(key, str) and (_COMPILED in key or _CHECKPOINTED in key)


def _name(model: torch.nn.Module, key: str) -> str:
    """As torch's `_get_fqns`. It also takes a DDP with tensors beside its `module`, and keys that lead to no attribute:
    a module's state dict may use other names.
    """
    *path, last = key.replace(_CHECKPOINTED, "").split(".")
    at: Any = model
    names = []
    for part in path:
        if not _leads_into(at, part):
            names.append(part)
        at = getattr(at, part, None)
    return ".".join([*names, last])


def _leads_into(module: Any, part: str) -> bool:
    """Whether this attribute of a wrapper is the module that it wraps."""
    if part == _COMPILED:  # to import the class itself takes a second
        return any(kind.__name__ == "OptimizedModule" for kind in type(module).__mro__)
    return part == "module" and isinstance(module, DistributedDataParallel)


def _kinds(model: torch.nn.Module) -> set[type[torch.nn.Module]]:
    """Classes of its modules, except a DDP around the whole model. To check each module would take longer."""
    root = model if isinstance(model, DistributedDataParallel) else None
    return {type(module) for module in model.modules() if module is not root}


def _has(kinds: Collection[type[torch.nn.Module]], wanted: type) -> bool:
    return any(issubclass(kind, wanted) for kind in kinds)
