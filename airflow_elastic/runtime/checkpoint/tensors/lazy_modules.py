"""Lazy modules: their parameters get the shapes that a checkpoint has of them, as the first forward pass gives them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.parameter import is_lazy

from airflow_elastic.runtime.checkpoint.format.compatibility import TensorKind
from airflow_elastic.runtime.checkpoint.tensors.parameter_names import names_now, weights_of


@torch.no_grad()
def materialise(model: torch.nn.Module, stored: Mapping[str, TensorKind | None]) -> None:
    """Have parameters and buffers of a model that have no shape yet be of the shapes that are stored.

    They stay the same objects, which optimizers have, too; the modules find out the rest with their first forward pass.

    Args:
        model: lazy or not.
        stored: kinds of what a checkpoint has of it, by its names there; None for what is no tensor.
    """
    every = (model.parameters(), model.buffers())
    if not any(is_lazy(one) for each in every for one in each):
        return
    now = names_now(model, stored)
    kinds = {now[name]: kind for name, kind in stored.items()}
    for name, one in weights_of(model, may_be_empty=True).items():
        if is_lazy(one) and (kind := kinds.get(name)) is not None:
            one.materialize(kind.shape)
