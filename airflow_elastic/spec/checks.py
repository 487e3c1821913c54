"""The vocabulary of validation: small predicates with a sentence about what is allowed."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple, Self

from airflow_elastic.spec.errors import Problem, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType


class Rule(NamedTuple):
    """A predicate over any value, and what it allows, in words."""

    holds: Callable[[object], bool]
    allowed: str


def _at_least(value: object, bound: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= bound


def _positive(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )


positive_int = Rule(lambda value: _at_least(value, 1), "an integer, at least 1")
non_negative_int = Rule(lambda value: _at_least(value, 0), "an integer, at least 0")
finite_positive = Rule(_positive, "a finite number greater than 0")
env_name = Rule(
    lambda value: isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) is not None,
    "the name of an environment variable: letters, digits and _",
)


def choice(options: Iterable[str]) -> Rule:
    """One of some words, spelled exactly so."""
    words = tuple(options)
    return Rule(lambda value: value in words, "one of " + ", ".join(words))


class Checks:
    """Collects problems inside a `with` block and raises them together, as one SpecError, at its end."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    @property
    def passed(self) -> bool:
        """Whether all checks so far have passed: guards rules that compare fields with one another."""
        return not self._problems

    def __call__(self, path: str, value: object, rule: Rule) -> None:
        """Note a problem unless the rule holds for the value."""
        self.that(rule.holds(value), path, value, rule.allowed)

    def that(self, holds: bool, path: str, given: object, allowed: str, *, across: bool = False) -> None:
        """Note a problem unless `holds`; `across` says that other fields have a part in it."""
        if not holds:
            self._problems.append(Problem(path, given, allowed, across))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._problems:
            raise SpecError(*self._problems)
