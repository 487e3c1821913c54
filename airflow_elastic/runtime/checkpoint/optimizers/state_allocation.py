"""Allocate the state of an optimizer before its first step, and keep the dtypes of a state that was read.

To have tensors to load into, torch gives all parameters zero gradients and makes a step with a learning rate of 0. That
takes memory for gradients, and much longer than to read the state. Here a step with a parameter of six elements shows
what state the optimizer would have. `states_by_name` explains why no step is made for saving either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import _init_optim_state
from torch.distributed.tensor import DTensor

from airflow_elastic.runtime.checkpoint.format.compatibility import TensorKind, kind_of
from airflow_elastic.spec.errors import InvalidInput

log = logging.getLogger(__name__)

_SHAPE = (2, 3)
_UNSAID = "A step without gradients does not show"


def allocate_state(optimizer: torch.optim.Optimizer, *, without_memory: bool = False) -> bool:
    """Give the optimizer the state that its first step would create, with uninitialised tensors.

    Args:
        optimizer: of any class.
        without_memory: the tensors are on torch's meta device, to find out how large a state is.

    Returns:
        Whether that was done. It is not done if there is a state already. It is not possible for optimizers from
        outside `torch.optim`, nor for tensors of other shapes than the parameter's: these need `allocate_by_a_step`.
    """
    if optimizer.state:
        return False
    if type(optimizer).__module__.split(".")[:2] != ["torch", "optim"]:
        return False
    states: dict[torch.Tensor, dict[str, Any]] = {}
    try:
        for group in optimizer.param_groups:
            options = {name: value for name, value in group.items() if name not in ("params", "param_names")}
            kept: dict[tuple[torch.device, torch.dtype], dict[str, Any]] = {}
            for one in group["params"]:
                kind = (one.device, one.dtype)
                if one.requires_grad:
                    if kind not in kept:
                        kept[kind] = _kept(type(optimizer), options, *kind)
                    if kept[kind]:
                        states[one] = {
                            name: _room(value, one, "meta" if without_memory else None)
                            for name, value in kept[kind].items()
                        }
    except Exception:  # an optimizer that needs more than gradients, as LBFGS needs a closure
        return False
    optimizer.state.update(states)
    return bool(states)


@contextmanager
def with_allocated_state(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[None]:
    """Inside this context, optimizers without state have an allocated one, where `allocate_state` can make it.

    It has no memory. On a GPU torch would keep that memory, in blocks of sizes that the training may not need.
    """
    made = [one for one in optimizers if allocate_state(one, without_memory=True)]
    try:
        yield
    finally:
        for one in made:
            one.state.clear()


def allocate_by_a_step(optimizer: torch.optim.Optimizer) -> None:
    """Allocate the state by torch's dummy step, for optimizers that `allocate_state` does not know.

    Only call this before a load that replaces everything the step may change. If the step fails, the state stays empty.
    """
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    gradients = [one.grad for one in parameters]
    # If the step fails, torch leaves them at zero.
    rates = [group.get("lr") for group in optimizer.param_groups]
    for one in parameters:
        one.grad = None  # torch makes no dummy step if there are gradients
    try:
        _init_optim_state(optimizer)
    except Exception as error:
        log.debug("%s makes no step without gradients: %r", type(optimizer).__name__, error)
        optimizer.state.clear()
    finally:
        for one, gradient in zip(parameters, gradients, strict=True):
            one.grad = gradient
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            if rate is not None:
                group["lr"] = rate


def room_as_stored(
    now: Any, stored: Mapping[tuple[str, ...], TensorKind | None], parameter: torch.Tensor
) -> Any:
    """A state of a parameter into which the stored one can be read. Tensors that fit are reused, the others are new.

    Args:
        now: the parameter's state in the optimizer, or a part of that state.
        stored: kinds by their paths from there; None for a value that is no tensor.
        parameter: the parameter.

    Raises:
        InvalidInput: the paths alone do not say where a stored value belongs.
    """
    if () in stored:
        kind = stored[()]
        if kind is None:
            return None
        if kind_of(now) == kind:
            return now
        if kind.shape == tuple(parameter.shape):
            return torch.empty_like(parameter, dtype=kind.dtype, requires_grad=False)
        if isinstance(parameter, DTensor) and kind.shape:
            raise InvalidInput(
                f"an optimizer keeps a tensor of the shape {kind.shape} for a sharded parameter of the shape "
                f"{tuple(parameter.shape)}. {_UNSAID} which part of the tensor is a rank's, so the tensor cannot be "
                "restored with fully_shard"
            )
        return torch.empty(kind.shape, dtype=kind.dtype)
    if not now and not isinstance(now, list) and any(map(_is_number, (path[0] for path in stored))):
        raise InvalidInput(
            f"an optimizer keeps lists, or dicts with numbers as keys, for a parameter. {_UNSAID} which of the two, "
            "so its state cannot be restored by names of parameters. In a new run, give it by a name of its own: "
            "run.restore(model, own=optimizer)"
        )
    own = [(tuple(str(key).split(".")), key) for key in now] if isinstance(now, dict) else []
    own.sort(key=lambda one: -len(one[0]))
    below: dict[Any, dict[tuple[str, ...], TensorKind | None]] = {}
    for path, kind in stored.items():
        words, key = next((one for one in own if path[: len(one[0])] == one[0]), (path[:1], path[0]))
        below.setdefault(key, {})[path[len(words) :]] = kind
    if isinstance(now, list):
        there = dict(enumerate(now))
        return [room_as_stored(there.get(int(at)), below[at], parameter) for at in sorted(below, key=int)]
    there = now if isinstance(now, dict) else {}
    in_order = dict.fromkeys([*(key for key in there if key in below), *below])
    return {key: room_as_stored(there.get(key), below[key], parameter) for key in in_order}


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return word in ("True", "False", "None")  # constants, not names
    return True


@contextmanager
def as_read(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[None]:
    """A context for `load_state_dict` of states that were read into the optimizers' own tensors: keeps their dtypes.

    torch would convert them to the parameter's dtype. NAdam's `mu_product`, for example, has another one.
    """
    rooms = [(one, {parameter: dict(kept) for parameter, kept in one.state.items()}) for one in optimizers]
    yield
    for one, read in rooms:
        keep_as_read(one, read)


def keep_as_read(optimizer: torch.optim.Optimizer, read: Mapping[torch.Tensor, Any]) -> None:
    """Put back what was read of each parameter, where torch has converted the dtype in loading."""
    for parameter, kept in read.items():
        _keep(optimizer.state.get(parameter, {}), kept)


def has_its_own_way(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it loads a state in another way than torch: by a hook, or a method of its own."""
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        return True
    return any(
        getattr(optimizer, f"_optimizer_load_state_dict_{when}_hooks", None) for when in ("pre", "post")
    )


def load_as_saved(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """`optimizer.load_state_dict`, but states keep their dtypes; not if the optimizer `has_its_own_way`."""
    optimizer.load_state_dict(dict(state))
    if has_its_own_way(optimizer):
        return
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        _keep(optimizer.state.get(parameter, {}), state["state"].get(number, {}))


def _keep(now: Any, read: Any) -> Any:
    """The loaded value, with what was read instead of each tensor that torch has converted, at any depth."""
    if torch.is_tensor(read):
        is_cast = torch.is_tensor(now) and now.dtype != read.dtype
        return read.to(now.device) if is_cast else now
    if isinstance(read, dict) and isinstance(now, dict):
        for name in read.keys() & now.keys():
            now[name] = _keep(now[name], read[name])
    elif type(read) in (list, tuple) and type(now) is type(read) and len(now) == len(read):
        return type(read)(_keep(*both) for both in zip(now, read, strict=True))
    return now


def _kept(
    kind: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """The state that such an optimizer has for a parameter after one step."""
    parameter = torch.nn.Parameter(torch.zeros(_SHAPE, device=device, dtype=dtype))
    parameter.grad = torch.zeros_like(parameter)
    one = kind([{**options, "params": [parameter]}])
    one.step()
    return dict(one.state.get(parameter, {}))


def _room(value: Any, parameter: torch.Tensor, device: str | None) -> Any:
    if not torch.is_tensor(value):
        return value
    if value.shape == _SHAPE:
        return torch.empty_like(parameter, dtype=value.dtype, device=device, requires_grad=False)
    if value.dim() == 0:
        return value.clone()
    raise ValueError("of another shape")
