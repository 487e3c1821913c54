"""Portions of a data set that has a length and an index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from airflow_elastic.runtime.data.accounting import Numbered, NumberedCollate
from airflow_elastic.runtime.data.claims import Claims
from airflow_elastic.runtime.data.portions import BatchShare, Portion
from airflow_elastic.runtime.data.sampler import ElasticBatches, cut
from airflow_elastic.runtime.data.seeding import Seeded, begin_with


def epoch_of(
    data: torch.utils.data.Dataset[Any],
    batches: ElasticBatches,
    epoch: int,
    *,
    options: Mapping[str, Any],
    account: bool,
) -> Iterator[Portion]:
    """Yield a rank's portions of an epoch.

    Args:
        data: the data set.
        batches: the rank's part of it, cut into pieces.
        epoch: number of the epoch.
        options: for `torch.utils.data.DataLoader`.
        account: record which samples were fetched.
    """
    samples: list[int] = []
    source = _load(data, batches, batches.epoch_seed, options, account=account)
    for piece, loaded in zip(batches.plan(), source, strict=True):
        numbers, content = loaded if account else ((), loaded)
        samples += numbers if piece.weight > 0 else ()
        given = None
        if piece.last:
            end = piece.start + piece.size
            given = BatchShare(epoch, end, piece.size, end == batches.length, tuple(samples))
            samples.clear()
        yield Portion(content, piece.weight, given)


def claimed_epoch_of(
    data: torch.utils.data.Dataset[Any],
    batches: ElasticBatches,
    epoch: int,
    *,
    claims: Claims,
    micro_batch: int,
    options: Mapping[str, Any],
    account: bool,
) -> Iterator[Portion]:
    """The same, but each rank gets as many pieces of a global batch as it has time for.

    Args:
        data: the data set.
        batches: the global batches.
        epoch: number of the epoch.
        claims: decide which rank gets which piece.
        micro_batch: the most samples of a piece.
        options: for `torch.utils.data.DataLoader`.
        account: record which samples were fetched.
    """
    wanted: list[list[int]] = []
    source = iter(_load(data, _Told(wanted), batches.epoch_seed, options, account=account))
    for start, size in batches.starts():
        over = start + size == batches.length
        shared = _Shared(epoch, start, size, micro_batch, claims, over=over)
        while shared.open:
            low, high, weight = shared.piece()
            wanted.append(batches.indices(low, high))
            loaded = next(source)
            numbers, content = loaded if account else ((), loaded)
            shared.samples += numbers if weight > 0 else ()
            yield Portion(content, weight, None, shared.finished)


class _Shared:
    """A global batch, and the piece of it that this rank has claimed."""

    def __init__(
        self, epoch: int, start: int, size: int, micro_batch: int, claims: Claims, *, over: bool
    ) -> None:
        self._epoch, self._start, self._size, self._claims = epoch, start, size, claims
        self._over = over
        self._pieces = cut(start, start + size, -(-size // micro_batch))
        self._number = claims.begin(len(self._pieces))
        self.samples: list[int] = []
        self.open = True

    def piece(self) -> tuple[int, int, float]:
        """From, to, and the weight. A rank without a piece still has to take part in the collectives, with weight 0."""
        if self._number >= len(self._pieces):
            return self._start, self._start + 1, 0.0
        low, high = self._pieces[self._number]
        return low, high, (high - low) * self._claims.world_size / self._size

    def finished(self) -> BatchShare | None:
        """The script has finished the piece: claim another one."""
        self._number = self._claims.take()
        self.open = self._number < len(self._pieces)
        if self.open:
            return None
        end = self._start + self._size
        return BatchShare(self._epoch, end, self._size, self._over, tuple(self.samples))


class _Told:
    """A batch sampler that yields the indices in a list, which the caller fills."""

    def __init__(self, wanted: list[list[int]]) -> None:
        self._wanted = wanted

    def __iter__(self) -> Iterator[list[int]]:
        while self._wanted:
            yield self._wanted.pop()


def _load(
    data: torch.utils.data.Dataset[Any],
    batches: Iterable[list[int]],
    seed: int,
    options: Mapping[str, Any],
    *,
    account: bool,
) -> torch.utils.data.DataLoader[Any]:
    # Without its own generator, the loader draws its seed from the global one. In a resumed epoch it would do so once
    # more than in an undisturbed one, and all later random numbers would differ.
    own = torch.Generator().manual_seed(seed)
    settings = {"generator": own, **options}
    # Without workers the rank's own generators are used, and they are saved.
    if options.get("num_workers"):
        settings["worker_init_fn"] = begin_with(data, options.get("worker_init_fn"))
        data = Seeded(data, seed)
    if account:
        data = Numbered(data)
        settings["collate_fn"] = NumberedCollate(options.get("collate_fn"))
    return torch.utils.data.DataLoader(data, batch_sampler=batches, **settings)
