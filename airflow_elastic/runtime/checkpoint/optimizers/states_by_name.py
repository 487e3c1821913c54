"""What optimizers keep, by the names of parameters instead of their numbers, and back again.

The layout is that of torch's `get_optimizer_state_dict`. That one has an optimizer that keeps nothing yet make a step
without effect, to have something to show; but Adam counts it, and corrects its first steps as if they were its second.
So an optimizer that starts later, or whose first step a gradient scaler skips, would be trained otherwise for having
been saved. Here nobody makes a step.
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
from airflow_elastic.runtime.checkpoint.tensors.parameter_names import names_of
from airflow_elastic.runtime.checkpoint.tensors.removed_parameters import RemovedParameters
from airflow_elastic.spec.errors import InvalidInput

Optimizers = Sequence[torch.optim.Optimizer]

#: An optimizer, and what it kept of parameters.
Former = tuple[torch.optim.Optimizer, dict[torch.Tensor, Any]]

#: Of a group in a checkpoint, the names of its settings, and its optimizer's class; None where that is not known.
Saved = tuple[set[str], str | None]

_STATES, _GROUPS, _CLASSES = "optimizer.state.", "optimizer.param_groups.", "optimizer.classes."
_SHOWN = 3

#: What groups have beside the settings of their class.
_NO_SETTINGS = (
    *("params", "param_names"),
    *("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"),  # of schedulers
)


class OfNoParameter(InvalidInput):
    """An optimizer keeps something that is the state of no parameter."""


def check_optimizers(model: torch.nn.Module, optimizers: Optimizers, departed: RemovedParameters) -> None:
    """Refuse optimizers whose states have no place in a checkpoint. Before anything is trained.

    Args:
        model: whose parameters they are to have.
        optimizers: their states are kept by the names of these.
        departed: knows parameters that were the model's.

    Raises:
        InvalidInput: one has parameters that are not the model's, or those of another one, or is LBFGS.
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
            "more than once, and of each parameter one state is kept. Where there is a second optimizer, "
            + by_name.format("second")
        )


def _check_strangers(
    one: torch.optim.Optimizer, names: Mapping[Any, str], departed: RemovedParameters
) -> None:
    kind, own = type(one).__name__, [*_parameters(one)]
    gone = {id(each) for each in departed.among(own, names, kind)}
    if strangers := [str(tuple(each.shape)) for each in own if each not in names and id(each) not in gone]:
        raise InvalidInput(
            f"an optimizer ({kind}) has {len(strangers)} parameters that are not the model's, of the shapes "
            f"{_some(strangers)}: they would not be saved. Have the model be what holds all that is trained, e.g. "
            "torch.nn.ModuleDict({'net': net, 'loss': loss}), or give a second model and its optimizer by names: "
            "run.restore(net, optimizer, critic=critic, critic_optimizer=other); and make the optimizer after the "
            "model is sharded"
        )


def states_of(
    model: torch.nn.Module, optimizers: Optimizers, departed: RemovedParameters | None = None
) -> dict[str, Any]:
    """What the optimizers keep of each parameter, by its name, and their settings, as a state dict of all of them.

    Args:
        model: whose parameters they have.
        optimizers: may still have parameters that were the model's, and are no more: of these nothing is kept.
        departed: knows those.

    Returns:
        `state`: of each parameter that has one; tensors are the optimizers' own, not copies. `param_groups`: of all
        optimizers, in their order; `params` are names. `classes`: numbers of groups, with their optimizer's class, as
        names of nothing. Empty without optimizers.

    Raises:
        OfNoParameter: an optimizer keeps something that is of none.
        InvalidInput: it has one that is not the model's, or goes on changing one that is so no more.
    """
    if not optimizers:
        return {}
    names, departed = names_of(model), departed or RemovedParameters()
    departed.has(names)
    state: dict[str, Any] = {}
    groups: list[dict[str, Any]] = []
    classes: dict[str, None] = {}  # names alone can be read before anything else is
    for one in optimizers:
        _check_strangers(one, names, departed)
        numbered, own = [names.get(each) for each in _parameters(one)], one.state_dict()
        of_none = [
            *(own.keys() - {"state", "param_groups"}),
            *(one for one in own["state"] if not isinstance(one, int)),
        ]
        if of_none:
            raise OfNoParameter(
                f"an optimizer ({type(one).__name__}) keeps {of_none[0]!r}, which is the state of no parameter: give "
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
    """Have optimizers keep something for each state that a checkpoint has of their parameters, to be read into.

    Args:
        model: whose parameters they have.
        optimizers: what they keep already is read into, where it is like what is stored.
        stored: kinds of all that the checkpoint has, by name.

    Returns:
        What they had instead.

    Raises:
        InvalidInput: nothing says where what is stored belongs. They have what they had.
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
                # Of another class, or of one that is not known, it has to be what this one keeps.
                if not own or type(one).__name__ in classes:
                    # What it keeps and the checkpoint has not stays, for `check_fit` to tell.
                    room = room_as_stored(own, kinds, parameter)
                    one.state[parameter] = {key: room.get(key, value) for key, value in own.items()} | room
    except BaseException:
        restore_states(former)
        raise
    return former


def restore_states(former: Iterable[Former]) -> None:
    """Nothing was loaded: have optimizers keep what they did before room was made for it."""
    for one, state in former:
        one.state.clear()  # whatever was in memory, or a part of what was read
        one.state.update(state)


def _states_below(
    names: Collection[str], stored: Mapping[str, TensorKind | None]
) -> dict[str, dict[tuple[str, ...], TensorKind | None]]:
    """What is stored of each of these parameters, by the names that lead to it: both may have dots."""
    found: dict[str, dict[tuple[str, ...], TensorKind | None]] = {}
    for key, kind in stored.items():
        words = key.removeprefix(_STATES).split(".") if key.startswith(_STATES) else []
        for end in range(len(words) - 1, 0, -1):
            if (name := ".".join(words[:end])) in names:
                found.setdefault(name, {})[tuple(words[end:])] = kind
                break
    return found


def request_states(optimizer: dict[str, Any], stored: Mapping[str, TensorKind | None]) -> list[Saved]:
    """Have a state of all optimizers ask for what a checkpoint has: for no state of parameters that had made no step
    yet, and for each setting that it has of a group, as at its place may be another group here.

    Returns:
        Of each of the checkpoint's groups, the names of its settings, and its optimizer's class.
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
    """Give the optimizers what `states_of` had of them, and a checkpoint has filled.

    Args:
        model: whose parameters they have.
        optimizers: in any order; groups are told apart by the parameters that they have.
        state: as `states_of` returns it.
        stored: what of each group's settings is the checkpoint's, and its optimizer's class; all else is not.

    Raises:
        InvalidInput: the checkpoint's groups are others, or of an optimizer of another class. No optimizer has been
            changed then.
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
    """Groups are loaded into the dicts that they were: what holds this optimizer, or is held by it, may have the same
    ones, and torch makes others.
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
    """Whether any of its parameters is the model's; a group without any is one, too."""
    return not group["params"] or any(map(has, group["params"]))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.nn.Parameter]:
    return (each for group in getattr(optimizer, "param_groups", []) for each in group["params"])


def _taken(
    groups: list[tuple[dict[str, Any], set[str], str | None]], mine: set[str]
) -> tuple[dict[str, Any], str | None]:
    """The settings of the group that has these parameters, which nobody else gets then; and its optimizer's class."""
    for at, (group, stored, kind) in enumerate(groups):
        if set(group["params"]) == mine:
            del groups[at]
            return {name: value for name, value in group.items() if name in stored - {"param_names"}}, kind
    there = max(
        (set(group["params"]) for group, *_ in groups), key=lambda one: len(one & mine), default=set()
    )
    differ = [f"the checkpoint's is without {name}" for name in sorted(mine - there)]
    differ += [f"the checkpoint's has {name}, too" for name in sorted(there - mine)]
    raise InvalidInput(
        "the parameter groups of the optimizers are not those that were saved: of the group of "
        f"{min(mine, default='no parameter')}, {'; '.join(differ[:_SHOWN])}"
    )


def _check_class(
    optimizer: torch.optim.Optimizer, settings: Collection[str], saved: str | None, theirs: Collection[str]
) -> None:
    """Refuse the state of an optimizer that is not like this one. Another name alone is no other kind: a faster one of
    the same may take its place. Schedulers and scripts add settings, and so does a newer torch.

    Args:
        optimizer: the script's.
        settings: of its group.
        saved: the class of the one that was saved; None where that is not known.
        theirs: the settings of that one's group.

    Raises:
        InvalidInput: tells what differs.
    """
    kind = type(optimizer).__name__
    # What wraps another one may have none of its own.
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
    """The settings; tensors among them, as a learning rate may be, on the device where the optimizer had its own."""
    return {
        name: value.to(own[name].device)
        if torch.is_tensor(value) and torch.is_tensor(own.get(name))
        else value
        for name, value in theirs.items()
    }
