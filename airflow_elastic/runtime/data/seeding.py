"""Random augmentation in a loader's workers: what is drawn for a sample depends on the sample and the epoch alone.

Workers are processes of their own, and begin anew where a run is gone on with. So their generators do so with each
sample, and it does not matter which worker fetches it, for which rank, and after which others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from airflow_elastic.runtime.checkpoint.save import random_state


class Seeded(torch.utils.data.Dataset[Any]):
    """A data set as workers have it: each sample is fetched with generators that are seeded for it.

    Args:
        data: the data set.
        seed: of the epoch.
    """

    def __init__(self, data: torch.utils.data.Dataset[Any], seed: int) -> None:
        self._data, self._seed = data, seed

    def __len__(self) -> int:
        return len(self._data)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        random_state.seed(self._seed, index)
        return self._data[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Those that a loader wants at once. Where the data set fetches them so, they share the seed of the first."""
        if not _fetches_at_once(self._data):
            return [self[index] for index in indices]
        random_state.seed(self._seed, indices[0])
        items: list[Any] = self._data.__getitems__(indices)  # type: ignore[attr-defined]
        return items


def begin_with(
    data: torch.utils.data.Dataset[Any], own: Callable[[int], None] | None
) -> Callable[[int], None]:
    """What a worker begins with: the script's own function, which is to find the script's own data set there.

    Args:
        data: the data set, as nothing is wrapped around it.
        own: the `worker_init_fn` that the script has given, if any.
    """
    return partial(_begin, data, own)


def _begin(data: torch.utils.data.Dataset[Any], own: Callable[[int], None] | None, worker: int) -> None:
    # torch knows what is wrapped around it, and lets nobody set this.
    object.__setattr__(torch.utils.data.get_worker_info(), "dataset", data)
    if own is not None:
        own(worker)


def _fetches_at_once(data: Any) -> bool:
    while isinstance(data, torch.utils.data.Subset):  # does so where what it is of does
        data = data.dataset
    return callable(getattr(data, "__getitems__", None))
