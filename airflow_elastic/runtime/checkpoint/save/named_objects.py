"""Save and load the objects that a script gives by name beside its model, at any world size.

Models among them are saved as the first model is: by names without the prefixes of wrappers, sharded or not. States of
optimizers are saved by the names of a model's parameters. Of everything else, `state_dict()` is saved as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from airflow_elastic.runtime.checkpoint.format.compatibility import TO_TRAIN, TensorKind
from airflow_elastic.runtime.checkpoint.format.tensor_split import split_tensors, without_arrays
from airflow_elastic.runtime.checkpoint.optimizers.composite import saved_in_place_of
from airflow_elastic.runtime.checkpoint.optimizers.state_allocation import (
    has_its_own_way,
    keep_as_read,
    load_as_saved,
    room_as_stored,
)
from airflow_elastic.runtime.checkpoint.optimizers.states_by_name import OfNoParameter, load_states, states_of
from airflow_elastic.runtime.checkpoint.read.reader import CheckpointReader
from airflow_elastic.runtime.checkpoint.tensors.in_place import load
from airflow_elastic.runtime.checkpoint.tensors.lazy_modules import materialise
from airflow_elastic.runtime.checkpoint.tensors.parameter_names import (
    is_kept_by_torch,
    names_now,
    names_of,
    set_weights,
    weights_of,
)
from airflow_elastic.runtime.checkpoint.tensors.removed_parameters import RemovedParameters
from airflow_elastic.spec.errors import InvalidInput

#: Marks the state of an optimizer that is saved by names: a torch state dict does not have this key.
_BY_NAME = "named"

_STATES = f"/{_BY_NAME}/state/"
_NUMBERED = "/state/"


def other_key(name: str) -> str:
    """The key of the state of an object that the script gives by this name."""
    return f"other.{name}"


class NamedObjects:
    """The named objects of a script, and all models whose parameters its optimizers may have.

    Args:
        model: the script's first model.
        others: the objects by name.
        departed: knows the parameters that the first model has had, and by name those of the other models.
    """

    def __init__(
        self, model: torch.nn.Module, others: Mapping[str, Any], departed: RemovedParameters
    ) -> None:
        self._others = others
        further = [(one, departed.of(name)) for name, one in others.items() if _has_names(one)]
        self._models = [(model, departed), *further]

    def know_parameters(self) -> None:
        """Note the parameters of the named models, because they may have lost some of them when they are saved."""
        for model, departed in self._models[1:]:
            departed.has(names_of(model))

    def states(self) -> dict[str, Any]:
        """The state of each object by its key, split into `tensors` and `rest`. Tensors are not copied."""
        return {other_key(name): _halves(self._state(one)) for name, one in self._others.items()}

    def _state(self, one: Any) -> Any:
        if _is_model(one):
            return weights_of(one, may_be_empty=True)
        if (owned := self._owned(one)) is not None:
            try:
                return {_BY_NAME: states_of(*owned)}
            except OfNoParameter:
                pass
        return one.state_dict()

    def check(self) -> None:
        """Raises InvalidInput if an optimizer has sharded parameters, but cannot be saved by their names."""
        for name, one in self._others.items():
            if _is_sharded(one) and self._owned(one) is None:
                raise InvalidInput(
                    f"{name} is an optimizer ({type(one).__name__}) of sharded parameters, whose states can only be "
                    "restored by names. Also give the model that has all of them with run.restore(net, optimizer, "
                    f"critic=critic, {name}=optimizer_of_critic). An optimizer that keeps no state of each parameter "
                    "(LBFGS) cannot be saved with fully_shard"
                )

    def materialise(self, reader: CheckpointReader) -> None:
        """Give parameters of lazy models the shapes that a checkpoint has."""
        for name, one in self._others.items():
            if _is_model(one):
                materialise(one, {key.removeprefix("/"): kind for key, kind in _stored(name, reader).items()})

    def make_room(self, name: str, parts: dict[str, Any], reader: CheckpointReader) -> None:
        """Make `parts` have a tensor for each one that a checkpoint has of an object, sharded as the object's own."""
        one, below = self._others[name], _below(name)
        own = without_arrays(parts["tensors"])
        stored = _stored(name, reader)
        if _is_model(one):
            now = names_now(one, [key.removeprefix("/") for key in stored])
            own = {f"/{key}": own[f"/{other}"] for key, other in now.items() if f"/{other}" in own}
        elif (owned := self._owned(one)) is not None:
            own = {}
            for key, parameter in self._parameters(owned, stored):
                own[key] = room_as_stored(None, {(): stored[key]}, parameter)
        parts["tensors"] = own
        # Modules convert dtypes silently, so they must be the stored ones.
        reader.make_room(own, below, exact=isinstance(one, torch.nn.Module))

    def _parameters(
        self, owned: tuple[torch.nn.Module, tuple[Any, ...], RemovedParameters], stored: Mapping[str, Any]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The parameter of each stored tensor of an optimizer: by name, or by number as former releases saved it."""
        model, parts, _ = owned
        named = {f"{_STATES}{name}/": one for one, name in names_of(model).items()}
        own = [each for one in parts for group in one.param_groups for each in group["params"]]
        named |= {f"{_NUMBERED}{number}/": each for number, each in enumerate(own)}
        for key in stored:
            begins = [end for end in range(len(key)) if key[end] == "/" and key[: end + 1] in named]
            if begins:
                yield key, named[key[: begins[-1] + 1]]

    def load(self, name: str, state: Any, what: str) -> None:
        """Load the state that was read into an object.

        Args:
            name: of the object.
            state: from `join_tensors`.
            what: the checkpoint, in words.

        Raises:
            InvalidInput: it is of another model or optimizer.
        """
        one = self._others[name]
        if _is_model(one) and isinstance(state, Mapping) and all(isinstance(key, str) for key in state):
            self._load_model(name, one, state, what)
        elif isinstance(one, torch.optim.Optimizer):
            self._load_optimizer(name, one, state, what)
        else:
            one.load_state_dict(state)

    def _load_model(self, name: str, model: torch.nn.Module, state: Mapping[str, Any], what: str) -> None:
        now = names_now(model, state)
        loaded = {now[key]: value for key, value in state.items()}
        own = weights_of(model, may_be_empty=True)
        try:
            if own.keys() == loaded.keys() and own:
                load(model, loaded)
            else:
                set_weights(model, loaded)
        except RuntimeError as error:
            differ = " ".join(str(error).split())
            raise InvalidInput(
                f"{what}: its {name} is of another model: {differ.rstrip('. ')}. {TO_TRAIN}"
            ) from error

    def _load_optimizer(self, name: str, one: torch.optim.Optimizer, state: Any, what: str) -> None:
        if not (isinstance(state, Mapping) and state.keys() == {_BY_NAME}):
            try:
                load_as_saved(one, state)
            except ValueError as error:
                raise InvalidInput(f"{what}: its {name} does not fit: {error}. {TO_TRAIN}") from error
            return
        owned = self._owned(one)
        if owned is None:
            raise InvalidInput(
                f"{what} has the states of {name} by names of parameters, but run.restore is given no model with all "
                "parameters of the optimizer. Give that model, by its name, too"
            )
        model, parts, _ = owned
        kept = state[_BY_NAME]
        classes = [key.partition(" ")[2] for key in kept["classes"]]
        groups = [({*group}, kind) for group, kind in zip(kept["param_groups"], classes, strict=True)]
        try:
            load_states(model, parts, kept, groups)
        except InvalidInput as error:
            raise InvalidInput(f"{what}: its {name} does not fit: {error}. {TO_TRAIN}") from error
        names = names_of(model)
        for part in parts:
            keep_as_read(
                part, {each: kept["state"].get(names[each], {}) for each in part.state if each in names}
            )

    def _owned(
        self, one: Any
    ) -> tuple[torch.nn.Module, tuple[torch.optim.Optimizer, ...], RemovedParameters] | None:
        """How the states of an optimizer are saved by names; None if it is no optimizer, or must be saved as it is.

        Returns:
            The model that has, or had, all parameters; the optimizers whose states are saved; and the parameters that
            the model has had.
        """
        if not isinstance(one, torch.optim.Optimizer):
            return None
        try:
            parts = saved_in_place_of([one], self._others.values())
        except InvalidInput:
            return None
        own = [each for part in parts for group in part.param_groups for each in group["params"]]
        if len({*map(id, own)}) < len(own) or any(isinstance(part, torch.optim.LBFGS) for part in parts):
            return None
        if any(has_its_own_way(part) for part in parts) and not _is_sharded(one):
            return None
        theirs = [names_of(model) for model, _ in self._models]
        everywhere = {id(each) for names in theirs for each in names}
        gone = [each for each in own if id(each) not in everywhere]
        here = [each for each in own if id(each) in everywhere]
        for (model, departed), names in zip(self._models, theirs, strict=True):
            if all(each in names for each in here) and all(each in departed for each in gone):
                return model, parts, departed
        return None


def _below(name: str) -> str:
    return f"{other_key(name)}.tensors."


def _stored(name: str, reader: CheckpointReader) -> dict[str, TensorKind]:
    """Kinds of the tensors that a checkpoint has of an object, by their names there."""
    below = _below(name)
    return {
        key.removeprefix(below): kind
        for key, kind in reader.kinds.items()
        if kind is not None and key.startswith(below)
    }


def _is_model(one: Any) -> bool:
    """Whether it is saved as a model, by names.

    A module that overrides `state_dict` or `load_state_dict` is not, and its own state dict is saved. Nor is a module
    with FSDP1, whose state dict has whole tensors.
    """
    return _has_names(one) and is_kept_by_torch(one)


def _has_names(one: Any) -> bool:
    """Whether states of optimizers can be saved by the names of its parameters."""
    if not isinstance(one, torch.nn.Module):
        return False
    return not any(isinstance(module, FullyShardedDataParallel) for module in one.modules())


def _is_sharded(one: Any) -> bool:
    groups = getattr(one, "param_groups", None)
    return isinstance(groups, list) and any(
        isinstance(each, DTensor) for group in groups if "params" in group for each in group["params"]
    )


def _halves(state: Any) -> dict[str, Any]:
    rest, tensors = split_tensors(state)
    return {"rest": rest, "tensors": tensors}
