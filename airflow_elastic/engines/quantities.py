"""Kubernetes' quantities, such as `4`, `500m`, `8Gi`, `.5` or `12E8`: the full grammar of `resource.Quantity`."""

from __future__ import annotations

import re
from decimal import Decimal

ALLOWED = "a quantity, e.g. 4, 500m, 8Gi or 1e9"

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?")
_UNITS = {
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    **{letter: Decimal(1000) ** -power for power, letter in enumerate("mun", 1)},
}


def is_quantity(value: str) -> bool:
    """Whether Kubernetes would accept this as an amount of a resource: none is below 0."""
    found = _QUANTITY.fullmatch(value)
    return found is not None and Decimal(found[1]) >= 0


def number_of(amount: str) -> Decimal:
    """The number of a quantity: 0.5 for `500m`. Raises ValueError."""
    found = _QUANTITY.fullmatch(amount)
    if found is None:
        raise ValueError(f"given {amount!r}; allowed: {ALLOWED}")
    number, unit = Decimal(found[1]), found[2] or ""
    return number * (_UNITS[unit] if unit in _UNITS else Decimal(10) ** int(unit[1:] or 0))


def times(count: int, amount: str) -> str:
    """A multiple of a quantity, in its own unit: 3 times `1.5Gi` is `4.5Gi`. Raises ValueError."""
    found = _QUANTITY.fullmatch(amount)
    if found is None:
        raise ValueError(f"given {amount!r}; allowed: {ALLOWED}")
    return f"{count * Decimal(found[1]):f}{found[2] or ''}"


def written(amount: str | int | float) -> str:
    """A quantity as text: YAML and JSON may have a number."""
    return str(int(amount)) if isinstance(amount, float) and amount.is_integer() else str(amount)
