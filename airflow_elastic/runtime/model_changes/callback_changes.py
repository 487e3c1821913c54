"""Records how callbacks of a framework change the shape of a model and its optimizers, and repeats the changes.

A framework's script has no place to rebuild the changes of a callback. These are groups of parameters that were added,
layers that were frozen or thawed, and masks of `torch.nn.utils.prune`. The differences from the start of the training
are kept, by names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils import prune

from airflow_elastic.runtime.checkpoint.tensors.parameter_names import names_of
from airflow_elastic.spec.errors import InvalidInput


class ModelShape:
    """The shape of a model with its optimizers.

    Args:
        model: as it is when a training begins, the same in each attempt; without wrappers.
        optimizers: of its parameters.
    """

    def __init__(self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._model, self._optimizers = model, optimizers
        self._began = self._now()

    def state_dict(self) -> dict[str, Any]:
        """The changes since the start, as plain values."""
        now, began = self._now(), self._began
        return {
            "groups": {at: own for at, own in now["groups"].items() if own != began["groups"].get(at)},
            "pruned": now["pruned"] if now["pruned"] != began["pruned"] else None,
            "trained": _differing(now["trained"], began["trained"]),
            "tracking": _differing(now["tracking"], began["tracking"]),
        }

    def load_state_dict(self, kept: Mapping[str, Any]) -> None:
        """Repeat the changes of model and optimizers.

        Raises:
            InvalidInput: the model is another one.
        """
        if kept["pruned"] is not None:
            self._prune([tuple(one) for one in kept["pruned"]])
        modules = dict(self._model.named_modules())
        for name, tracking in kept["tracking"].items():
            _of(modules, name).track_running_stats = tracking
        parameters = {name: one for one, name in names_of(self._model).items()}
        for name, trained in kept["trained"].items():
            _of(parameters, name).requires_grad_(trained)
        for at, groups in kept["groups"].items():
            if at < len(self._optimizers):
                _regroup(
                    self._optimizers[at], [[_of(parameters, name) for name in names] for names in groups]
                )

    def _now(self) -> dict[str, Any]:
        names, modules = names_of(self._model), dict(self._model.named_modules())
        return {
            "groups": {
                at: [[names[each] for each in group["params"] if each in names] for group in one.param_groups]
                for at, one in enumerate(self._optimizers)
            },
            "pruned": [*_pruned(modules)],
            "trained": {name: one.requires_grad for one, name in names.items()},
            "tracking": {
                name: one.track_running_stats
                for name, one in modules.items()
                if isinstance(getattr(one, "track_running_stats", None), bool)
            },
        }

    def _prune(self, wanted: Sequence[tuple[str, ...]]) -> None:
        """Prune the same tensors. The masks' values do not matter, because they are loaded."""
        modules = dict(self._model.named_modules())
        now = [*_pruned(modules)]
        for where, name in now:
            if (where, name) not in wanted:
                prune.remove(modules[where], name)  # type: ignore[no-untyped-call]
        for where, name in wanted:
            if (where, name) not in now:
                prune.identity(_of(modules, where), name)  # type: ignore[no-untyped-call]


def _pruned(modules: Mapping[str, torch.nn.Module]) -> Iterator[tuple[str, str]]:
    for where, module in modules.items():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, prune.BasePruningMethod):
                yield where, hook._tensor_name


def _differing(now: Mapping[str, bool], began: Mapping[str, bool]) -> dict[str, bool]:
    return {name: value for name, value in now.items() if began.get(name) is not value}


def _of(named: Mapping[str, Any], name: str) -> Any:
    if name not in named:
        raise InvalidInput(
            f"the checkpoint has {name}, which has changed in training, and which the model does not have. Has a "
            "callback added it? If `trainer.run.resumed` is set and its `step` is past that point, add it in your "
            "script before `fit` or `train`. Or begin a run with another URI"
        )
    return named[name]


def _regroup(optimizer: torch.optim.Optimizer, wanted: Sequence[Sequence[torch.Tensor]]) -> None:
    """Give the optimizer these groups of parameters, in this order. Their settings are loaded later."""

    def key(parameters: Sequence[torch.Tensor]) -> frozenset[int]:
        return frozenset(map(id, parameters))

    own = {key(group["params"]): group for group in optimizer.param_groups}
    missing = [one for one in wanted if key(one) not in own]
    optimizer.param_groups[:] = [own[key(one)] for one in wanted if key(one) in own]
    for one in missing:
        optimizer.add_param_group({"params": [*one]})
    own = {key(group["params"]): group for group in optimizer.param_groups}
    optimizer.param_groups[:] = [own[key(one)] for one in wanted]
