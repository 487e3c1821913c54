"""Numbers as texts: quantities with units for people, and words for numbers that JSON does not have."""

from __future__ import annotations

import math

#: Numbers that are not finite, by the words that stand for them in JSON documents.
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def non_finite_word(value: float) -> str | None:
    """The word of `NON_FINITE` for a number that is not finite; None for any other."""
    if math.isfinite(value):
        return None
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def json_number(value: float) -> float | str:
    """The number, or its word if it is not finite."""
    return non_finite_word(value) or value


def size(count: float) -> str:
    """A number of bytes in decimal units, with three significant digits: `0 B`, `635 kB`, `3.2 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB" if count < 999.5 else f"{count:.0f} TB"
