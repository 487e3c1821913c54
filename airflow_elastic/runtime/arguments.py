"""Numbers that a script gives: whole ones and times, each with a bound."""

from __future__ import annotations

import operator
from typing import Any

from airflow_elastic.spec.errors import InvalidInput, Problem
from airflow_elastic.spec.validation import MOST_COUNT, finite_positive, non_negative_int

#: What a generator of torch's takes.
_LEAST_SEED, _MOST_SEED = -(2**63), 2**64 - 1


def whole_number(name: str, value: Any, least: int, whose: str = "run.loader") -> int:
    """A whole number of any type. Raises InvalidInput."""
    number = _index(value)
    if number is None or number < least:
        raise _refused(whose, name, value, f"a whole number from {least}")
    if number > MOST_COUNT:
        raise _refused(whose, name, value, f"at most {MOST_COUNT}: {non_negative_int.why}")
    return number


def seed_number(value: Any, whose: str = "run.loader") -> int:
    """A seed of any type. Raises InvalidInput."""
    number = _index(value)
    if number is None:
        raise _refused(whose, "seed", value, "a whole number")
    if not _LEAST_SEED <= number <= _MOST_SEED:
        allowed = f"{_LEAST_SEED} to {_MOST_SEED}: torch's generators take 64 bits"
        raise _refused(whose, "seed", value, allowed)
    return number


def seconds(name: str, value: Any, whose: str) -> float:
    """A time. Raises InvalidInput."""
    if (allowed := finite_positive.broken(value)) is not None:
        raise _refused(whose, name, value, allowed)
    return float(value)


def _index(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _refused(whose: str, name: str, value: Any, allowed: str) -> InvalidInput:
    return InvalidInput(f"{whose}: {Problem(name, value, allowed)}")
