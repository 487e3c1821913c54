"""Quantities with units, for people."""

from __future__ import annotations


def size(count: float) -> str:
    """A number of bytes in decimal units, with three significant digits: `0 B`, `635 kB`, `3.2 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB" if count < 999.5 else f"{count:.0f} TB"
