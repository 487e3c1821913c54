"""One quantile for charts and tables of figures."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The number at this share of sorted numbers: one of them, never one between; None where there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
