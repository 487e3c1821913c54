"""The samples that a script gets at once, and a rank's share of a global batch, which a step consumes."""

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
        offset: samples of the epoch that are consumed when the step is done.
        size: samples of the global batch.
        over: whether it is the last one of the epoch.
        samples: this rank's samples, by index; empty if the run does not account for them.
        spans: the same for a stream, by their places in shards.
        ended: shards whose end was reached.
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
        content: the batch for the script.
        weight: of its mean loss.
        completes: the share, if this is its last piece.
        finished: call it when the script has finished the piece, if only then it is known whether this rank gets
            another piece. Returns the share, if it gets none.
    """

    content: Any
    weight: float
    completes: BatchShare | None
    finished: Callable[[], BatchShare | None] | None = None
