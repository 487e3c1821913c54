"""Amounts of resources as Kubernetes writes them, such as `500m` or `8Gi`: read, and written."""

from __future__ import annotations

import math
import re

_AMOUNT = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[mkMGTPE])?")
_UNITS = {
    "": 1.0,
    "m": 1e-3,
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)},
    **{letter: 1000.0**power for power, letter in enumerate("kMGTPE", 1)},
}

MIB = 1024.0**2


def amount(text: object) -> float | None:
    """The number of an amount, in processors or bytes; None if it is written in another way."""
    found = _AMOUNT.fullmatch(str(text))
    return None if found is None else float(found[1]) * _UNITS[found[2] or ""]


def processors(count: float) -> str:
    """So many processors, rounded up to a tenth: `500m`, `4`."""
    thousandths = max(100, math.ceil(count * 10 - 1e-9) * 100)
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def memory(count: float) -> str:
    """So many bytes, rounded up to 64 MiB: `448Mi`, `8Gi`."""
    whole = max(1, math.ceil(count / MIB / 64 - 1e-9)) * 64
    return f"{whole // 1024}Gi" if whole % 1024 == 0 else f"{whole}Mi"
