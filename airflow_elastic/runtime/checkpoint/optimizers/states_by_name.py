"""Save and load the states of optimizers, by the names of parameters instead of their numbers.

The layout is that of torch's `get_optimizer_state_dict`. For an optimizer without state, that function makes a dummy
step, so that there is a state. But Adam counts this step, and its bias correction is then that of the second step. So a
save would change the training of an optimizer that starts later, or whose first step a gradient scaler skips. No step
is made here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from airflow_elastic.runtime.checkpoint.format.compatibility import TensorKind
from airflow_elastic.runtime.checkpoint.optimizers.state_allocation import (
    allocate_by_a_step,
    allocate_state,
    room_as_stored,
)
from airflow_elastic.runtime.checkpoint.tensors.model_walk import ModelWalk
from airflow_elastic.runtime.checkpoint.tensors.parameter_names import names_of
from airflow_elastic.runtime.checkpoint.tensors.removed_parameters import RemovedParameters
from airflow_elastic.spec.errors import InvalidInput

Optimizers = Sequence[torch.optim.Optimizer]

#: An optimizer, and its former state.
Former = tuple[torch.optim.Optimizer, dict[torch.Tensor, Any]]

#: Of a parameter group in a checkpoint: the names of its settings, and its optimizer's class; None if not known.
Saved = tuple[set[str], str | None]

_STATES, _GROUPS, _CLASSES = "optimizer.state.", "optimizer.param_groups.", "optimizer.classes."
_SHOWN = 3

#: Keys of groups that are no settings of the optimizer's class.
_NO_SETTINGS = (
    *("params", "param_names"),
    *("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"),  # of schedulers
)


class OfNoParameter(InvalidInput):
    """An optimizer keeps a state that belongs to no parameter."""


def check_optimizers(model: torch.nn.Module, optimizers: Optimizers, departed: RemovedParameters) -> None:
    """Refuse optimizers whose states cannot be saved, before the training begins.

    Args:
        model: it should have all parameters of the optimizers.
        optimizers: their states will be saved by the names of the parameters.
        departed: knows the parameters that the model has had.

    Raises:
        InvalidInput: an optimizer is LBFGS, or has parameters of another model, or of another optimizer.
    """
    names = names_of(model)
    departed.has(names)
    by_name = "give it by a name of its own instead: run.restore(model, {}=optimizer)"
    for one in optimizers:
        if isinstance(one, torch.optim.LBFGS):
            raise InvalidInput(
                "an optimizer is LBFGS, which keeps a history of no fixed length, and not a state of each parameter: "
                + by_name.format("lbfgs")
            )
        _check_strangers(one, names, departed)
    counts = Counter(p for one in optimizers for p in _parameters(one) if p in names)
    if twice := [each for each, count in counts.items() if count > 1]:
        raise InvalidInput(
            f"{_some([names[each] for each in twice])}: optimizers have the same parameters ({len(twice)} of them) "
            "more than once, but only one state of each parameter is saved. If there is a second optimizer, "
            + by_name.format("second")
        )


def _check_strangers(
    one: torch.optim.Optimizer, names: Mapping[Any, str], departed: RemovedParameters
) -> None:
    kind, own = type(one).__name__, [*_parameters(one)]
    if all(each in names for each in own):
        return
    gone = {id(each) for each in departed.among(own, names, kind)}
    if strangers := [str(tuple(each.shape)) for each in own if each not in names and id(each) not in gone]:
        raise InvalidInput(
            f"an optimizer ({kind}) has {len(strangers)} parameters that are not the model's, of the shapes "
            f"{_some(strangers)}: they would not be saved. Put everything that is trained into one model, e.g. "
            "torch.nn.ModuleDict({'net': net, 'loss': loss}). Or give a second model and its optimizer by names with "
            "run.restore(net, optimizer, critic=critic, critic_optimizer=other). If the model is sharded, make the "
            "optimizer after that"
        )


def states_of(
    model: torch.nn.Module,
    optimizers: Optimizers,
    departed: RemovedParameters | None = None,
    walk: ModelWalk | None = None,
) -> dict[str, Any]:
    """The states of all optimizers by names of parameters, and their settings, as one state dict.

    Args:
        model: it has the parameters.
        optimizers: they may still hold parameters that the model has no more; the states of these are left out.
        departed: knows the parameters that the model has had.
        walk: a look at the model, if there is one.

    Returns:
        `state`: by parameter, if it has one; tensors are the optimizers' own, not copies. `param_groups`: of all
        optimizers, in their order; `params` are names. `classes`: keys "number class" for each group, without values.
        Empty without optimizers.

    Raises:
        OfNoParameter: an optimizer keeps a state that belongs to no parameter.
        InvalidInput: it has a parameter that is not the model's, or still changes one that the model has no more.
    """
    if not optimizers:
        return {}
    names, departed = names_of(model, walk), departed or RemovedParameters()
    departed.has(names)
    state: dict[str, Any] = {}
    groups: list[dict[str, Any]] = []
    classes: dict[str, None] = {}  # in the keys, which are known before any value is read
    for one in optimizers:
        _check_strangers(one, names, departed)
        numbered, own = [names.get(each) for each in _parameters(one)], one.state_dict()
        of_none = [
            *(own.keys() - {"state", "param_groups"}),
            *(one for one in own["state"] if not isinstance(one, int)),
        ]
        if of_none:
            raise OfNoParameter(
                f"an optimizer ({type(one).__name__}) keeps {of_none[0]!r}, which is the state of no parameter. Give "
                "it by a name of its own: run.restore(model, own=optimizer)"
            )
        state |= {name: kept for number, kept in own["state"].items() if (name := numbered[number])}
        groups += [
            {**group, "params": [name for each in group["params"] if (name := numbered[each])]}
            for group in own["param_groups"]
            if _is_of(group, lambda each: numbered[each] is not None)  # noqa: B023 - asked at once
        ]
        classes |= {f"{number} {type(one).__name__}": None for number in range(len(classes), len(groups))}
    return {"state": state, "param_groups": groups, "classes": classes}


def make_room_for(
    model: torch.nn.Module, optimizers: Optimizers, stored: Mapping[str, TensorKind | None]
) -> list[Former]:
    """Give optimizers tensors for each state that a checkpoint has of their parameters, so that it can be read there.

    Args:
        model: it has the parameters.
        optimizers: tensors that they have already are reused if the stored ones are of the same kind.
        stored: kinds of all values in the checkpoint, by name.

    Returns:
        Their former states.

    Raises:
        InvalidInput: the names do not say where a stored value belongs. The optimizers have their former states.
    """
    names = names_of(model) if optimizers else {}
    known = _states_below({*names.values()}, stored)
    classes = {kind for _, kind in _stored_groups(stored)}
    former = [(one, dict(one.state)) for one in optimizers]
    try:
        for one in optimizers:
            theirs = {each: known[names[each]] for each in _parameters(one) if names.get(each) in known}
            if not any(one.state.values()):
                one.state.clear()
                if not allocate_state(one) and theirs:
                    allocate_by_a_step(one)
            for parameter, kinds in theirs.items():
                own = one.state.get(parameter, {})
                # If the saved class is another one or not known, this state stays, for `check_fit` to compare.
                if not own or type(one).__name__ in classes:
                    # Values that the checkpoint lacks stay, too, so that `check_fit` names them.
                    room = room_as_stored(own, kinds, parameter)
                    one.state[parameter] = {key: room.get(key, value) for key, value in own.items()} | room
    except BaseException:
        restore_states(former)
        raise
    return former


def restore_states(former: Iterable[Former]) -> None:
    """Undo `make_room_for`, because nothing was loaded."""
    for one, state in former:
        one.state.clear()  # uninitialised memory, or a part of what was read
        one.state.update(state)


def _states_below(
    names: Collection[str], stored: Mapping[str, TensorKind | None]
) -> dict[str, dict[tuple[str, ...], TensorKind | None]]:
    """The stored state of each parameter, by paths. Names of parameters and the paths may both have dots."""
    found: dict[str, dict[tuple[str, ...], TensorKind | None]] = {}
    for key, kind in stored.items():
        words = key.removeprefix(_STATES).split(".") if key.startswith(_STATES) else []
        for end in range(len(words) - 1, 0, -1):
            if (name := ".".join(words[:end])) in names:
                found.setdefault(name, {})[tuple(words[end:])] = kind
                break
    return found


def request_states(optimizer: dict[str, Any], stored: Mapping[str, TensorKind | None]) -> list[Saved]:
    """Make a state dict of all optimizers request what a checkpoint has.

    Parameters without a stored state had made no step yet, so their states are removed. Each group gets the names of
    all settings of the stored group at its place, because the groups may be in another order here.

    Returns:
        For each group of the checkpoint, the names of its settings, and its optimizer's class.
    """
    states, saved = optimizer.get("state", {}), _stored_groups(stored)
    for name in states.keys() - _states_below(states, stored).keys():
        del states[name]
    optimizer.pop("classes", None)
    for group, (names, _) in zip(optimizer.get("param_groups", []), saved, strict=False):
        for name in names:
            group.setdefault(name, None)
    return saved


def _stored_groups(stored: Iterable[str]) -> list[Saved]:
    settings: dict[int, set[str]] = {}
    classes: dict[int, str] = {}
    for name in stored:
        if name.startswith(_GROUPS):
            number, setting = name.removeprefix(_GROUPS).split(".")[:2]
            settings.setdefault(int(number), set()).add(setting)
        elif name.startswith(_CLASSES):
            number, _, kind = name.removeprefix(_CLASSES).partition(" ")
            classes[int(number)] = kind
    return [(settings[number], classes.get(number)) for number in sorted(settings)]


def load_states(
    model: torch.nn.Module, optimizers: Optimizers, state: dict[str, Any], stored: list[Saved]
) -> None:
    """Load states into the optimizers.

    Args:
        model: it has the parameters.
        optimizers: in any order; groups are matched by their parameters.
        state: from `states_of`, filled from a checkpoint.
        stored: for each group, the names of the settings that the checkpoint has, and its optimizer's class.

    Raises:
        InvalidInput: the checkpoint's groups have other parameters, or an optimizer of another class. No optimizer has
            been changed.
    """
    names = names_of(model)
    groups = [(group, *saved) for group, saved in zip(state["param_groups"], stored, strict=True)]
    taken = [
        [
            _taken(groups, {names[p] for p in own["params"] if p in names})
            if _is_of(own, names.__contains__)
            else ({}, None)
            for own in each.param_groups
        ]
        for each in optimizers
    ]
    for one, found in zip(optimizers, taken, strict=True):
        for own, (theirs, kind) in zip(one.param_groups, found, strict=True):
            if theirs:
                _check_class(one, own, kind, theirs)
    for one, found in zip(optimizers, taken, strict=True):
        places = {id(each): number for number, each in enumerate(_parameters(one))}
        numbers = {names[each]: places[id(each)] for each in _parameters(one) if each in names}
        with _same_groups(one):
            one.load_state_dict(
                {
                    "state": {
                        numbers[name]: kept for name, kept in state["state"].items() if name in numbers
                    },
                    "param_groups": [
                        {
                            **own,
                            **_where(own, theirs),
                            "params": [places[id(each)] for each in own["params"]],
                        }
                        for own, (theirs, _) in zip(one.param_groups, found, strict=True)
                    ],
                }
            )


@contextmanager
def _same_groups(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Keep the dict objects of the groups while a state is loaded.

    torch would replace them, but an optimizer around or inside this one may share them.
    """
    former = optimizer.param_groups
    dicts = [*former]
    yield
    now = optimizer.param_groups
    if "param_groups" in vars(optimizer) and now is not former and len(now) == len(dicts):
        for own, loaded in zip(dicts, now, strict=True):
            own.clear()
            own.update(loaded)
        former[:] = dicts
        optimizer.param_groups = former


def _is_of(group: Mapping[str, Any], has: Callable[[Any], bool]) -> bool:
    """Whether any of the group's parameters is the model's. A group without parameters counts, too."""
    return not group["params"] or any(map(has, group["params"]))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.nn.Parameter]:
    return (each for group in getattr(optimizer, "param_groups", []) for each in group["params"])


def _taken(
    groups: list[tuple[dict[str, Any], set[str], str | None]], mine: set[str]
) -> tuple[dict[str, Any], str | None]:
    """Take the group that has these parameters from the list: its settings, and its optimizer's class."""
    for at, (group, stored, kind) in enumerate(groups):
        if set(group["params"]) == mine:
            del groups[at]
            return {name: value for name, value in group.items() if name in stored - {"param_names"}}, kind
    there = max(
        (set(group["params"]) for group, *_ in groups), key=lambda one: len(one & mine), default=set()
    )
    differ = [f"the checkpoint's lacks {name}" for name in sorted(mine - there)]
    differ += [f"the checkpoint's has {name}, too" for name in sorted(there - mine)]
    raise InvalidInput(
        "the parameter groups of the optimizers differ from those that were saved. For the group of "
        f"{min(mine, default='no parameter')}, {'; '.join(differ[:_SHOWN])}"
    )


def _check_class(
    optimizer: torch.optim.Optimizer, settings: Collection[str], saved: str | None, theirs: Collection[str]
) -> None:
    """Refuse the state of another kind of optimizer.

    A class with another name but the same settings is allowed: it may be a faster version. Schedulers, scripts and
    newer versions of torch may add settings.

    Args:
        optimizer: the script's.
        settings: of its group.
        saved: the class of the optimizer that was saved; None if not known.
        theirs: the settings of the group that was saved.

    Raises:
        InvalidInput: names the settings that differ.
    """
    kind = type(optimizer).__name__
    # A wrapper of another optimizer may have no `defaults`.
    known = settings if (own := getattr(optimizer, "defaults", None)) is None else own
    mine = sorted({*settings}.intersection(known) - {*theirs, *_NO_SETTINGS})
    lost = sorted({*theirs} - {*settings, *_NO_SETTINGS})
    if (mine and lost) if saved is None else (saved != kind and (mine or lost)):
        sides = ((f"the script's ({kind})", mine), (f"the one that was saved ({saved or 'not known'})", lost))
        differ = [f"{whose} has the settings {_some(names)}" for whose, names in sides if names]
        raise InvalidInput(f"an optimizer is of another class: {', and '.join(differ)}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" and more" if len(names) > _SHOWN else "")


def _where(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """The settings. Tensors, as a learning rate may be one, are moved to the device of the optimizer's own."""
    return {
        name: value.to(own[name].device)
        if torch.is_tensor(value) and torch.is_tensor(own.get(name))
        else value
        for name, value in theirs.items()
    }
