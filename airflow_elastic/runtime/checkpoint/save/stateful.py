"""The objects that a script wants to save, and their state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from airflow_elastic.runtime.checkpoint.format.tensor_split import packed
from airflow_elastic.runtime.checkpoint.optimizers.composite import is_optimizer, saved_in_place_of
from airflow_elastic.runtime.checkpoint.optimizers.states_by_name import check_optimizers, states_of
from airflow_elastic.runtime.checkpoint.save import random_state
from airflow_elastic.runtime.checkpoint.save.named_objects import NamedObjects
from airflow_elastic.runtime.checkpoint.tensors.model_walk import ModelWalk
from airflow_elastic.runtime.checkpoint.tensors.parameter_names import weights_of
from airflow_elastic.runtime.checkpoint.tensors.removed_parameters import RemovedParameters
from airflow_elastic.runtime.checkpoint.tensors.shared_storage import ties_among
from airflow_elastic.spec.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Stateful:
    """The objects that a script wants to save: a model with its optimizers, and others that have state dicts.

    `left` names objects that older checkpoints may have, and the script has no more. Optimizers inside other optimizers
    replace these in `optimizers`. `departed` knows all parameters that the models have had.

    Raises:
        InvalidInput: the states of the optimizers cannot be saved, or an object has no state dict.
    """

    model: torch.nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    others: Mapping[str, Any]
    left: frozenset[str] = frozenset()
    departed: RemovedParameters = field(default_factory=RemovedParameters)

    def __post_init__(self) -> None:
        for one in self.optimizers:
            if not (hasattr(one, "param_groups") or is_optimizer(one)):
                raise InvalidInput(
                    f"run.restore: given a {type(one).__name__} as an optimizer. Give other objects that have a state "
                    "by names of your own: run.restore(model, optimizer, schedule=schedule)"
                )
        for name, other in self.others.items():
            if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
                raise InvalidInput(
                    f"run.restore: {name}: given a {type(other).__name__}; allowed: an object with state_dict and "
                    "load_state_dict. Keep everything that changes with training in such objects; others need not be "
                    "given"
                )
        within = saved_in_place_of(self.optimizers, self.others.values())
        object.__setattr__(self, "optimizers", within)
        self.named.know_parameters()
        self.named.check()
        check_optimizers(self.model, self.optimizers, self.departed)

    @property
    def named(self) -> NamedObjects:
        """The further objects, as they are saved and loaded."""
        return NamedObjects(self.model, self.others, self.departed)

    @property
    def stepping(self) -> list[Any]:
        """All optimizers, also those that are given by a name."""
        by_name = (one for one in self.others.values() if is_optimizer(one))
        return [*self.optimizers, *by_name]


def state_of(objects: Stateful, rank: int, walk: ModelWalk | None = None) -> dict[str, Any]:
    """Everything that is saved, by name. Tensors are those of the model itself, not copies."""
    walk = walk or ModelWalk(objects.model)
    weights = packed(weights_of(objects.model, walk=walk))
    if not walk.is_plain:  # a hook may have changed the model
        walk.again()
    return {
        "model": weights,
        "optimizer": states_of(objects.model, objects.optimizers, objects.departed, walk),
        **objects.named.states(),
        # Keyed by rank, because values under the same key should be alike on all ranks.
        f"random.{rank}": random_state.capture(),
    }


def ties_of(state: Mapping[str, Any]) -> dict[str, str]:
    """The keys of tied tensors in the model and in the script's own objects, with the first key of each."""
    tensors = {"model": state["model"]}
    tensors |= {f"{key}.tensors": one["tensors"] for key, one in state.items() if key.startswith("other.")}
    found = ((below, ties_among(some)) for below, some in tensors.items())
    return {f"{below}.{name}": f"{below}.{first}" for below, ties in found for name, first in ties.items()}
