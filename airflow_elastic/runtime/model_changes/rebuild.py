"""Models whose shape changes in training: the script's hook rebuilds the saved shape before a checkpoint is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from airflow_elastic.runtime.checkpoint.optimizers.composite import is_optimizer
from airflow_elastic.runtime.checkpoint.save.named_objects import NamedObjects
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.checkpoint.tensors.parameter_names import names_of
from airflow_elastic.runtime.checkpoint.tensors.removed_parameters import RemovedParameters
from airflow_elastic.runtime.model_changes.ddp_renewal import follow
from airflow_elastic.spec.checkpoints.resumed import Resumed
from airflow_elastic.spec.errors import InvalidInput

#: Changes model and optimizers in place; returns None, or the optimizers to use from then on.
Rebuild = Callable[[Resumed], Any]


def rebuilt(
    model: torch.nn.Module,
    optimizers: tuple[Any, ...],
    others: Mapping[str, Any],
    left: frozenset[str],
    rebuild: Rebuild | None,
    resumed: Callable[[], Resumed | None],
) -> Stateful:
    """The objects to load and save: those of the script, after its hook has given them their saved shape.

    Args:
        model: of the script.
        optimizers: of the script.
        others: its other objects, by names.
        left: names of objects that it no longer has.
        rebuild: the hook, if there is one.
        resumed: returns the facts of the checkpoint that is loaded after the hook; None without a checkpoint.

    Raises:
        InvalidInput: the hook is not a function, or returns something other than optimizers; or as `Stateful`.
    """
    follow(model, *others.values())
    departed = RemovedParameters()
    departed.has(names_of(model))
    NamedObjects(model, others, departed).know_parameters()
    if rebuild is not None and (facts := resumed()) is not None:
        optimizers = _asked(rebuild, facts, optimizers)
    return Stateful(model, optimizers, others, left, departed)


def replaced(
    former: Stateful, model: torch.nn.Module | None, optimizers: tuple[Any, ...], others: Mapping[str, Any]
) -> Stateful:
    """The same with another model, other optimizers or other objects, if these are given.

    Args:
        former: the objects before.
        model: the new model; None keeps the former one.
        optimizers: the new ones; an empty tuple keeps the former ones.
        others: new objects by names; None removes an object.

    Raises:
        InvalidInput: as `Stateful`.
    """
    follow(model, *others.values())
    both = {**former.others, **others}
    return replace(
        former,
        model=former.model if model is None else model,
        optimizers=optimizers or former.optimizers,
        others={name: one for name, one in both.items() if one is not None},
    )


def _asked(rebuild: Rebuild, facts: Resumed, optimizers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Call the hook. Returns the optimizers after it."""
    if not callable(rebuild):
        raise InvalidInput(
            f"run.restore: rebuild: given a {type(rebuild).__name__}; allowed: a function. It gets the facts of the "
            "checkpoint (as in run.resumed), and changes the model and its optimizers to their saved shape"
        )
    said = rebuild(facts)
    if said is None:
        return optimizers
    found = tuple(said) if isinstance(said, list | tuple) else (said,)
    if wrong := [one for one in found if not is_optimizer(one)]:
        is_model = isinstance(wrong[0], torch.nn.Module)
        more = ": change the model that run.restore is given in place" if is_model else ""
        raise InvalidInput(
            f"run.restore: rebuild has returned a {type(wrong[0]).__name__}{more}; allowed: None, or the optimizers "
            "to load and save in place of those given"
        )
    return found
