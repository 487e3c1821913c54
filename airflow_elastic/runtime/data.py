"""A rank's share of the data: handed to the script batch by batch, and how far the run has come with it.

What counts is what a step was done with. Batches may have been fetched before their turn: by a loader's workers, or by
a training loop that looks ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from airflow_elastic.runtime.accounting import Accountant, Numbered, NumberedCollate
from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.runtime.sampler import ElasticBatches
from airflow_elastic.runtime.saving import Position
from airflow_elastic.spec.consumed import Consumed
from airflow_elastic.spec.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class _Given:
    """What the script was given for one step: samples of the whole global batch, and which of them are this rank's."""

    epoch: int
    offset: int  # of the epoch's samples, when the step is done
    size: int
    samples: tuple[int, ...]


class Feed:
    """What a rank's script is given.

    Args:
        ranks: this rank among the others.
        accountant: keeps what was consumed, where the run accounts for that.
        expect: is told how many steps there will be.

    Attributes:
        position: where the run stands: behind the last step.
        weight: what the mean loss of the samples at hand counts.
        step_due: whether they are the last ones of this rank's share of a global batch.
    """

    def __init__(self, ranks: Ranks, accountant: Accountant | None, expect: Callable[[int], None]) -> None:
        self.position, self.weight, self.step_due = Position(), 1.0, True
        self._ranks, self._accountant, self._expect = ranks, accountant, expect
        self._given: deque[_Given] = deque()

    def batches(
        self,
        data: torch.utils.data.Dataset[Any],
        *,
        global_batch: int,
        epochs: int,
        seed: int,
        shuffle: bool,
        micro_batch: int | None,
        options: Mapping[str, Any],
    ) -> Iterator[Any]:
        """Yield this rank's share of every global batch, as `Session.loader` says."""
        self._given.clear()
        length = len(data)  # type: ignore[arg-type]
        self._expect(epochs * -(-length // global_batch))
        if self._accountant is not None:
            self._accountant.length = length
        for epoch in range(self.position.epoch, epochs):
            offset = self.position.offset if epoch == self.position.epoch else 0
            batches = ElasticBatches(
                length,
                global_batch=global_batch,
                epoch=epoch,
                offset=offset,
                seed=seed,
                rank=self._ranks.rank,
                world_size=self._ranks.world_size,
                shuffle=shuffle,
                micro_batch=micro_batch,
            )
            samples: list[int] = []
            for piece, batch in zip(batches.plan(), self._loaded(data, batches, options), strict=True):
                numbers, content = batch if self._accountant is not None else ((), batch)
                samples += numbers if piece.weight > 0 else ()
                self.weight, self.step_due = piece.weight, piece.last
                if piece.last:
                    offset = piece.start + piece.size
                    self._given.append(_Given(epoch, offset, piece.size, tuple(samples)))
                    samples.clear()
                yield content
            if not self._given:
                self.position = Position(epoch + 1, 0, self.position.samples)

    def _loaded(
        self, data: torch.utils.data.Dataset[Any], batches: ElasticBatches, options: Mapping[str, Any]
    ) -> torch.utils.data.DataLoader[Any]:
        """Yields batches; where the run accounts for its samples, behind their numbers."""
        # Of its own, or the loader would draw its seed from the global generator: once more in a resumed epoch than
        # in an undisturbed one, and everything random after it would differ.
        own = torch.Generator().manual_seed(batches.epoch_seed)
        settings = {"generator": own, **options}
        if self._accountant is not None:
            data = Numbered(data)
            settings["collate_fn"] = NumberedCollate(options.get("collate_fn"))
        return torch.utils.data.DataLoader(data, batch_sampler=batches, **settings)

    def stepped(self, step: int) -> None:
        """A step was done with what was given first.

        Raises:
            InvalidInput: not all of it has been given yet.
        """
        if not self._given:
            if not self.step_due:
                raise InvalidInput(
                    "run.step was called before the last piece of a global batch: with micro_batch a step has several, "
                    "and is due where run.step_due says so"
                )
            return
        given = self._given.popleft()
        self.position = Position(given.epoch, given.offset, self.position.samples + given.size)
        if self._accountant is not None:
            self._accountant.stepped(Consumed(step, given.epoch, given.samples))
