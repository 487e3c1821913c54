"""Models whose shape changes while they are trained: what a script builds anew is what was saved, and then loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from airflow_elastic.runtime.checkpoint.optimizers.composite import is_optimizer
from airflow_elastic.runtime.checkpoint.save.named_objects import NamedObjects
from airflow_elastic.runtime.checkpoint.save.save import Stateful
from airflow_elastic.runtime.checkpoint.tensors.parameter_names import names_of
from airflow_elastic.runtime.checkpoint.tensors.removed_parameters import RemovedParameters
from airflow_elastic.runtime.model_changes.ddp_renewal import follow
from airflow_elastic.spec.checkpoints.resumed import Resumed
from airflow_elastic.spec.errors import InvalidInput

#: Changes model and optimizers in place; returns None, or the optimizers to take from there on.
Rebuild = Callable[[Resumed], Any]


def rebuilt(
    model: torch.nn.Module,
    optimizers: tuple[Any, ...],
    others: Mapping[str, Any],
    left: frozenset[str],
    rebuild: Rebuild | None,
    resumed: Callable[[], Resumed | None],
) -> Stateful:
    """What is loaded and saved: what a script has given, changed by its hook to what it was when it was saved.

    Args:
        model: the script's.
        optimizers: its optimizers.
        others: its further objects, by names.
        left: names of objects that it has no more.
        rebuild: the hook; None where there is none.
        resumed: gives the facts of the checkpoint that is loaded after it; None where there is none.

    Raises:
        InvalidInput: the hook is none, or returns something else than optimizers; or as `Stateful`.
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
    """The same with other optimizers and objects, or another model, where these are given.

    Args:
        former: what it was.
        model: None: the same.
        optimizers: none: the same.
        others: by names; None in the place of one that is no more.

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
    """The optimizers that there are when the hook has been called."""
    if not callable(rebuild):
        raise InvalidInput(
            f"run.restore: rebuild: given a {type(rebuild).__name__}; allowed: a function that takes the facts of the "
            "checkpoint (as run.resumed has them), and changes the model and its optimizers to what was saved"
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
            "that are to be loaded and saved in place of those given"
        )
    return found
