"""A rank's account of the samples that it consumes. A sample that was prefetched, and not used, does not count."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.runtime.environment import RankEnvironment
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.checkpoints.sample_records import Account, Consumed, Data


class Accountant:
    """Keeps the samples that this rank has consumed until its agent has written them.

    Args:
        surroundings: the rank's environment.
        words: of its page, in which the agent reports what it has written.
    """

    def __init__(self, surroundings: RankEnvironment, words: memoryview[float]) -> None:
        self._who, self._words = surroundings, words
        self._steps: deque[Consumed] = deque()
        self._from_step = 0
        self._data: dict[int, Data] = {}  # by the phases that use it
        self._went_on_from: tuple[int, int] | None = None

    def has(self, phase: int, *, length: int = 0, shards: int = 0) -> None:
        """The data of a training has so many samples, or shards. It may grow; the largest counts."""
        known = self._data.get(phase, Data(phase))
        self._data[phase] = Data(phase, max(length, known.length), max(shards, known.shards))

    def goes_on(self, manifest: Manifest | None) -> None:
        """Training resumes from this checkpoint; None: it begins."""
        if manifest is not None:
            self._from_step, self._went_on_from = manifest.step, manifest.saved_by

    def stepped(self, consumed: Consumed) -> None:
        """A step was done."""
        self._steps.append(consumed)

    def account(self) -> Account:
        """All steps that, as far as is known, are not written yet."""
        while self._steps and self._steps[0].step <= self._words[shared_page.WRITTEN]:
            self._steps.popleft()
        who = self._who
        return Account(
            who.attempt,
            who.generation,
            who.rank,
            who.world_size,
            self._from_step,
            0,
            tuple(self._steps),
            0,
            self._went_on_from,
            tuple(self._data.values()),
        )


class Numbered(torch.utils.data.Dataset[Any]):
    """A data set whose items come with their numbers."""

    def __init__(self, data: torch.utils.data.Dataset[Any]) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self._data[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[int, Any]]:
        """The items of a batch."""
        at_once = getattr(self._data, "__getitems__", None)
        items = at_once(indices) if at_once else (self._data[index] for index in indices)
        return list(zip(indices, items, strict=True))


class NumberedCollate:
    """Collates the items of a batch as the script wants, and returns their numbers beside them.

    Args:
        collate: the script's own. Default: torch's.
    """

    def __init__(self, collate: Callable[[list[Any]], Any] | None) -> None:
        self._collate = collate or torch.utils.data.default_collate

    def __call__(self, items: list[tuple[int, Any]]) -> tuple[list[int], Any]:
        return [number for number, _ in items], self._collate([item for _, item in items])
