"""Optimizers that hold others: several in one object, as for training with Muon, or a wrapper of a single one.

Their state dicts have forms of their own. Such a dict may consist only of the state dicts of the inner optimizers. Then
these are saved instead of the object, by the names of their parameters, and can be restored at any world size, also
sharded. Anything else is refused before the first step, with advice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from airflow_elastic.spec.errors import InvalidInput

_FORM = {"state", "param_groups"}

#: Attributes of an optimizer that hold no inner optimizers.
_OWN = (*_FORM, "defaults")


def is_optimizer(one: Any) -> bool:
    """Whether it is a torch optimizer, or has the methods of one."""
    return isinstance(one, torch.optim.Optimizer) or all(
        callable(getattr(one, name, None)) for name in ("step", "zero_grad", "state_dict", "load_state_dict")
    )


def innermost(one: Any) -> list[Any]:
    """The optimizers in this one that hold no others, each once; the optimizer itself if it holds none."""
    inner = [each for _, held in _held(one) for each in held]
    found = {id(each): each for one in inner for each in innermost(one)} if inner else {id(one): one}
    return [*found.values()]


def saved_in_place_of(optimizers: Sequence[Any], others: Iterable[Any]) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers whose states are saved for those that a script has given: mostly the same ones.

    Args:
        optimizers: as they are given.
        others: objects that are given by a name.

    Raises:
        InvalidInput: a state dict does not have torch's form, and does not consist of those of the inner optimizers. Or
            an optimizer steps by an inner one, and its state dict leaves out the state of that one.
    """
    given = {id(each) for each in (*optimizers, *others)}
    return tuple(each for one in optimizers for each in _resolved(one, given))


def _resolved(one: Any, given: set[int]) -> list[torch.optim.Optimizer]:
    held = _held(one)
    if not held and type(one).state_dict is torch.optim.Optimizer.state_dict:
        return [one]
    inner = [each for _, some in held for each in some]
    found = {id(each): each for some in inner for each in _resolved(some, given)}
    within = [*found.values()]
    with _filled(within):  # empty states would all be equal
        kept = one.state_dict()
        if within and _is_made_of(kept, within):
            return within
    if not _is_of_torchs_form(kept):
        raise InvalidInput(_other_form(one, kept, held))
    if not within or all(id(each) in given for each in inner) or not hasattr(one, "param_groups"):
        return [one]
    if kept.keys() == _FORM and "state" not in vars(one) and _parameters([one]) == _parameters(within):
        return within  # its state is a view of the inner ones
    if all(one.state is each.state for each in within):
        return [one]
    raise InvalidInput(
        f"an optimizer ({_kind(one)}) steps by an inner one, {held[0][0]} ({_kind(inner[0])}). Its state_dict() leaves "
        "out the state of that one, so each restart would lose it. Give the inner one instead: "
        f"run.restore(model, {_words(held)})"
    )


def _other_form(one: Any, kept: Any, held: Sequence[tuple[str, list[Any]]]) -> str:
    keys = (
        f"the keys {', '.join(map(repr, [*kept][:3]))}" if isinstance(kept, Mapping) else type(kept).__name__
    )
    within = f", or give its inner optimizers: run.restore(model, {_words(held)})" if held else ""
    return (
        f"an optimizer ({_kind(one)}) has a state dict of another form than torch's ({keys}; torch's has 'state' and "
        "'param_groups'). Give it by a name of its own, so that its state is saved as it is: "
        f"run.restore(model, own=optimizer){within}"
    )


def _words(held: Sequence[tuple[str, list[Any]]]) -> str:
    """The arguments for `run.restore`, as Python code."""
    return ", ".join(f"*optimizer.{name}" if len(some) > 1 else f"optimizer.{name}" for name, some in held)


def _kind(one: Any) -> str:
    return type(one).__name__


def _parameters(optimizers: Iterable[Any]) -> set[int]:
    return {id(each) for one in optimizers for group in one.param_groups for each in group["params"]}


def _held(one: Any) -> list[tuple[str, list[Any]]]:
    """The optimizers in an object's attributes, or in lists, tuples and dicts there, by the attributes' names."""
    own = vars(one) if hasattr(one, "__dict__") else {}
    found = ((name, [*_within(value)]) for name, value in own.items() if name not in _OWN)
    return [(name, some) for name, some in found if some and all(each is not one for each in some)]


def _within(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.optim.Optimizer):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _within(each)
    elif type(value) in (list, tuple):
        for each in value:
            yield from _within(each)
    elif not isinstance(value, type) and is_optimizer(value):
        yield value


@contextmanager
def _filled(optimizers: Iterable[Any]) -> Iterator[None]:
    """Give each optimizer without state a dummy one inside this context, so that no two states are equal."""
    empty = [one for one in optimizers if isinstance(getattr(one, "state", None), dict) and not one.state]
    for one in empty:
        first = next((each for group in one.param_groups for each in group["params"]), None)
        if first is not None:
            one.state[first] = {"kept": torch.zeros(())}
    try:
        yield
    finally:
        for one in empty:
            one.state.clear()


def _is_made_of(kept: Any, within: Sequence[Any]) -> bool:
    """Whether a state dict consists of the state dicts of these optimizers, each once."""
    parts = _parts(kept)
    if parts is None or len(parts) != len(within):
        return False
    left = [_fingerprint(one.state_dict()) for one in within]
    for mine in map(_fingerprint, parts):
        if mine not in left:
            return False
        left.remove(mine)
    return True


def _is_of_torchs_form(kept: Any) -> bool:
    """Whether it has the keys `state` and `param_groups`, and groups with `params`."""
    if not isinstance(kept, Mapping) or not kept.keys() >= _FORM or not isinstance(kept["state"], Mapping):
        return False
    groups = kept["param_groups"]
    return isinstance(groups, list | tuple) and all(
        isinstance(one, Mapping) and "params" in one for one in groups
    )


def _parts(kept: Any) -> list[Mapping[str, Any]] | None:
    """The state dicts of torch's form inside another one; None if that holds anything else."""
    if _is_of_torchs_form(kept) and kept.keys() == _FORM:
        return [kept]
    if not isinstance(kept, Mapping | list | tuple):
        return None
    found: list[Mapping[str, Any]] = []
    for each in kept.values() if isinstance(kept, Mapping) else kept:
        if (some := _parts(each)) is None:
            return None
        found += some
    return found


def _fingerprint(kept: Mapping[str, Any]) -> tuple[Any, Any]:
    """Equal for two state dicts of the same optimizer, if they hold the same tensor objects."""
    tensors = {
        (number, name): id(value) if torch.is_tensor(value) else None
        for number, state in kept["state"].items()
        if isinstance(state, Mapping)
        for name, value in state.items()
    }
    return [[*group["params"]] for group in kept["param_groups"]], tensors
