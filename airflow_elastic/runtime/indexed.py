"""Portions of a data set that has a length and an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from airflow_elastic.runtime.accounting import Numbered, NumberedCollate
from airflow_elastic.runtime.portions import Given, Portion
from airflow_elastic.runtime.sampler import ElasticBatches


def epoch_of(
    data: torch.utils.data.Dataset[Any],
    batches: ElasticBatches,
    epoch: int,
    *,
    options: Mapping[str, Any],
    account: bool,
) -> Iterator[Portion]:
    """Yield what a rank is given of an epoch.

    Args:
        data: the data set.
        batches: what of it, and in which pieces.
        epoch: number of the epoch.
        options: for `torch.utils.data.DataLoader`.
        account: say which samples were fetched.
    """
    samples: list[int] = []
    for piece, loaded in zip(batches.plan(), _load(data, batches, options, account), strict=True):
        numbers, content = loaded if account else ((), loaded)
        samples += numbers if piece.weight > 0 else ()
        given = None
        if piece.last:
            given = Given(epoch, piece.start + piece.size, piece.size, tuple(samples))
            samples.clear()
        yield Portion(content, piece.weight, given)


def _load(
    data: torch.utils.data.Dataset[Any], batches: ElasticBatches, options: Mapping[str, Any], account: bool
) -> torch.utils.data.DataLoader[Any]:
    # Of its own, or the loader would draw its seed from the global generator: once more in a resumed epoch than in an
    # undisturbed one, and everything random after it would differ.
    own = torch.Generator().manual_seed(batches.epoch_seed)
    settings = {"generator": own, **options}
    if account:
        data = Numbered(data)
        settings["collate_fn"] = NumberedCollate(options.get("collate_fn"))
    return torch.utils.data.DataLoader(data, batch_sampler=batches, **settings)
