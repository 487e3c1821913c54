"""What an evaluation has measured of a checkpoint, or of a promoted model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation.

    Attributes:
        id: different for every evaluation; a retry has that of its task.
        by: the run that has measured.
        at: epoch seconds.
        metrics: what it has measured.
        data: the folder of the checkpoint's files, or the key of the promoted weights: a step may be saved again.
    """

    id: str
    by: str
    at: float
    metrics: Mapping[str, float]
    data: str
