"""Parameters that were a model's and are no more, as its shape changes while it is trained: a layer that is dropped, a
weight that is parametrized. Optimizers still have them, and leave them as they are.
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
    """All parameters that a model has had since it was given, by which those are known that it has no more."""

    def __init__(self) -> None:
        # How often each had changed when it was found to be no more; None of those that nobody has missed.
        self._had = WeakTensorKeyDictionary()
        self._last: tuple[int, ...] = ()
        self._further: dict[str, RemovedParameters] = {}

    def of(self, name: str) -> RemovedParameters:
        """Those of a further model, which a script gives by this name."""
        return self._further.setdefault(name, RemovedParameters())

    def __contains__(self, parameter: torch.Tensor) -> bool:
        """Whether the model has it, or had."""
        return parameter in self._had

    def has(self, parameters: Collection[torch.Tensor]) -> None:
        """The model has these."""
        those = tuple(map(id, parameters))
        if those != self._last:  # training waits for it
            self._last = those
            for one in parameters:
                self._had[one] = None

    def among(
        self, parameters: Iterable[torch.Tensor], model: Collection[torch.Tensor], whose: str
    ) -> list[torch.Tensor]:
        """Those that were the model's and are no more.

        Args:
            parameters: of an optimizer.
            model: the model's, now.
            whose: the optimizer's class, in words.

        Raises:
            InvalidInput: the optimizer goes on changing one, and nobody would save it.
        """
        found = [one for one in parameters if one not in model and one in self._had]
        for one in found:
            changes = self._had[one]
            if changes is None:
                log.info(
                    "a parameter of the shape %s is no part of the model any more: what the optimizer (%s) keeps of it "
                    "is not saved",
                    *(tuple(one.shape), whose),
                )
                self._had[one] = one._version
            elif changes != one._version and one not in SharedStorage(model):  # as weight norm has it there
                raise InvalidInput(
                    f"an optimizer ({whose}) goes on changing a parameter of the shape {tuple(one.shape)} that is no "
                    "part of the model any more: it would not be saved. Have the model hold it, or take it out of the "
                    "optimizer, or set its grad to None"
                )
        return found
