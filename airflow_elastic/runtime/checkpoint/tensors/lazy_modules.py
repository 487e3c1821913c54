"""Lazy modules: their parameters get their shapes from a checkpoint, instead of from the first forward pass."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.parameter import is_lazy

from airflow_elastic.runtime.checkpoint.format.compatibility import TensorKind
from airflow_elastic.runtime.checkpoint.tensors.parameter_names import names_now, weights_of


@torch.no_grad()
def materialise(model: torch.nn.Module, stored: Mapping[str, TensorKind | None]) -> None:
    """Give parameters and buffers that have no shape yet the shapes that are stored.

    They stay the same objects, as optimizers hold them. The modules infer the rest in their first forward pass.

    Args:
        model: lazy or not.
        stored: kinds of the model's values in a checkpoint, by their names there; None for a value that is no tensor.
    """
    every = (model.parameters(), model.buffers())
    if not any(is_lazy(one) for each in every for one in each):
        return
    now = names_now(model, stored)
    kinds = {now[name]: kind for name, kind in stored.items()}
    for name, one in weights_of(model, may_be_empty=True).items():
        if is_lazy(one) and (kind := kinds.get(name)) is not None:
            one.materialize(kind.shape)
