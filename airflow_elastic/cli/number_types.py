"""Types of click for numbers, checked by the rules of the specification."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from airflow_elastic.spec.errors import shown
from airflow_elastic.spec.validation import finite_positive, non_negative_int, positive_int

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.spec.validation import Rule

N = TypeVar("N", int, float)


def _number(name: str, kind: Callable[[str], N], rule: Rule) -> Callable[[str], N]:
    """The type of an option or argument that is such a number; `name` appears in help texts."""

    def parse(value: str) -> N:
        try:
            number = kind(value)
        except ValueError:  # no number, or more digits than Python reads
            raise click.BadParameter(f"{shown(value)} is not a valid {name}") from None
        if (allowed := rule.broken(number)) is not None:
            raise click.BadParameter(f"given {shown(number)}; allowed: {allowed}")
        return number

    parse.__name__ = name
    return parse


COUNT = _number("integer", int, positive_int)
FROM_ZERO = _number("integer", int, non_negative_int)
PORT = _number("integer", int, non_negative_int._replace(most=65535, why="it is the highest port of TCP"))
SECONDS = PRICE = _number("number", float, finite_positive)
