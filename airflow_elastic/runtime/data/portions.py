"""What a script is given at once, and what of it a step is done with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_elastic.spec.checkpoints.sample_records import Ended, Span


@dataclass(frozen=True, slots=True)
class BatchShare:
    """This rank's share of a global batch.

    Attributes:
        epoch: from 0.
        offset: samples of the epoch that are done with, when the step is.
        size: samples of the global batch.
        over: whether the epoch is over with it.
        samples: those that are this rank's, by index; nothing where nobody wants to know.
        spans: or by their places in shards.
        ended: shards whose end was come to.
        done: called when the step is done.
    """

    epoch: int
    offset: int
    size: int
    over: bool
    samples: tuple[int, ...] = ()
    spans: tuple[Span, ...] = ()
    ended: tuple[Ended, ...] = ()
    done: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Portion:
    """Samples that a rank gets at once.

    Attributes:
        content: what the script is given.
        weight: what the mean loss of it counts.
        completes: the share of which it is the last piece.
        finished: to be called when the script is through with it, where nobody knows before that whether there is
            another piece for this rank; returns the share, if there is none.
    """

    content: Any
    weight: float
    completes: BatchShare | None
    finished: Callable[[], BatchShare | None] | None = None
