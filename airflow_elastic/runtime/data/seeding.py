"""Random augmentation in a loader's workers: random numbers for a sample depend only on the sample and the epoch.

Workers are separate processes, and start again when a run resumes. So their generators are seeded again for each
sample. It does not matter which worker fetches it, for which rank, and after which other samples.
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
        """The samples of a batch. If the data set fetches them at once, they share the seed of the first."""
        if not _fetches_at_once(self._data):
            return [self[index] for index in indices]
        random_state.seed(self._seed, indices[0])
        items: list[Any] = self._data.__getitems__(indices)  # type: ignore[attr-defined]
        return items


def begin_with(
    data: torch.utils.data.Dataset[Any], own: Callable[[int], None] | None
) -> Callable[[int], None]:
    """The `worker_init_fn` of a loader: it calls the script's own function, which must find the script's data set.

    Args:
        data: the script's data set, without a wrapper.
        own: the script's own `worker_init_fn`, if it has one.
    """
    return partial(_begin, data, own)


def _begin(data: torch.utils.data.Dataset[Any], own: Callable[[int], None] | None, worker: int) -> None:
    # torch has the wrapper here, and does not allow a plain assignment.
    object.__setattr__(torch.utils.data.get_worker_info(), "dataset", data)
    if own is not None:
        own(worker)


def _fetches_at_once(data: Any) -> bool:
    while isinstance(data, torch.utils.data.Subset):  # it does if its own data set does
        data = data.dataset
    return callable(getattr(data, "__getitems__", None))
