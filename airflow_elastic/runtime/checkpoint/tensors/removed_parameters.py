"""Parameters that a model had and has no more, because a script drops a layer or parametrizes a weight while it trains.

Optimizers still hold them. They must not change them any more, because no checkpoint would have the change.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from airflow_elastic.runtime.checkpoint.tensors.shared_storage import SharedStorage
from airflow_elastic.spec.errors import InvalidInput

log = logging.getLogger(__name__)


class RemovedParameters:
    """Remembers all parameters that a model has had since `run.restore`, to recognise those that it has no more."""

    def __init__(self) -> None:
        # A parameter's version counter when it was first missed; None if it never was.
        self._had = WeakTensorKeyDictionary()
        self._last: tuple[int, ...] = ()
        self._further: dict[str, RemovedParameters] = {}

    def of(self, name: str) -> RemovedParameters:
        """The parameters of another model, which a script gives by this name."""
        return self._further.setdefault(name, RemovedParameters())

    def __contains__(self, parameter: torch.Tensor) -> bool:
        """Whether the model has this parameter, or had it."""
        return parameter in self._had

    def has(self, parameters: Collection[torch.Tensor]) -> None:
        """Note that the model has these parameters now."""
        those = tuple(map(id, parameters))
        if those != self._last:  # saves time, as training waits
            self._last = those
            for one in parameters:
                self._had[one] = None

    def among(
        self, parameters: Iterable[torch.Tensor], model: Collection[torch.Tensor], whose: str
    ) -> list[torch.Tensor]:
        """The parameters of an optimizer that the model had and has no more.

        Args:
            parameters: of the optimizer.
            model: the parameters that the model has now.
            whose: the name of the optimizer's class.

        Raises:
            InvalidInput: the optimizer still changes one of them, and no checkpoint would have it.
        """
        found = [one for one in parameters if one not in model and one in self._had]
        for one in found:
            changes = self._had[one]
            if changes is None:
                log.info(
                    "a parameter of the shape %s is no part of the model any more: its state in the optimizer (%s) is "
                    "not saved",
                    *(tuple(one.shape), whose),
                )
                self._had[one] = one._version
            elif changes != one._version and one not in SharedStorage(model):  # weight norm keeps its memory
                raise InvalidInput(
                    f"an optimizer ({whose}) still changes a parameter of the shape {tuple(one.shape)} that is no part "
                    "of the model any more: it would not be saved. Keep it in the model, take it out of the optimizer, "
                    "or set its grad to None"
                )
        return found
