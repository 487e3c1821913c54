"""The vocabulary of validation: small predicates, each with a sentence about the allowed values."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Self

from airflow_elastic.spec.errors import Problem, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType


#: The largest 64-bit integer: steps are kept in tensors and in shared memory.
MOST_COUNT = 2**63 - 1

#: 285 years: the longest that Python's threads can wait and calendars can show.
MOST_SECONDS = 9e9

#: Kubernetes runs at most so many pods of one Indexed Job at once, and clusters have half as many nodes at most.
MOST_WORKERS = 10_000

#: Each rank is a process of the worker's machine. No machine has as many devices or spare processors.
MOST_PROCS = 1_000

#: Standby workers. Losses of more workers at once are rare; a new job is for them.
MOST_STANDBY = 100

#: The longest script that a specification may have, in UTF-8. The journal and each job's record have a copy.
MOST_SCRIPT_BYTES = 256 * 1024


class Rule(NamedTuple):
    """A predicate over any value, and the allowed values in words.

    Attributes:
        holds: the predicate.
        allowed: the allowed values.
        most: for numbers, the largest one that is accepted. Larger ones are typing errors.
        why: why larger numbers make no sense.
    """

    holds: Callable[[object], bool]
    allowed: str
    most: float | None = None
    why: str = ""

    def broken(self, value: object) -> str | None:
        """The allowed values, in words, if this value breaks the rule; else None."""
        return self.too_large(value) if self.holds(value) else self.allowed

    def too_large(self, value: object) -> str | None:
        """The allowed values, in words, if this is a number above the largest; else None."""
        if self.most is not None and isinstance(value, int | float) and value > self.most:
            return f"at most {int(self.most)}: {self.why}"
        return None


def _at_least(value: object, bound: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= bound


def _positive(value: object) -> bool:
    number = isinstance(value, int) and not isinstance(value, bool)
    return (number or (isinstance(value, float) and math.isfinite(value))) and value > 0  # type: ignore[operator]


_bits = "it is kept in 64 bits"

positive_int = Rule(lambda value: _at_least(value, 1), "an integer, at least 1", MOST_COUNT, _bits)
non_negative_int = Rule(lambda value: _at_least(value, 0), "an integer, at least 0", MOST_COUNT, _bits)
finite_positive = Rule(
    _positive, "a finite number greater than 0", MOST_SECONDS, "clocks go no further than 285 years"
)
worker_count = positive_int._replace(
    most=MOST_WORKERS, why="Kubernetes runs no more pods of one job, on its largest clusters"
)
standby_count = non_negative_int._replace(most=MOST_STANDBY, why="each is a machine that does not train")
procs_count = positive_int._replace(most=MOST_PROCS, why="each is a process of the worker's machine")

#: The range that Kubernetes has for numbers in its objects.
int32 = Rule(
    lambda value: _at_least(value, 0), "an integer, at least 0", 2**31 - 1, "Kubernetes keeps it in 32 bits"
)
env_name = Rule(
    lambda value: isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) is not None,
    "the name of an environment variable: letters, digits and _",
)


def _is_script(value: object) -> bool:
    data = value.encode(errors="replace") if isinstance(value, str) else b""
    # Half of a pair of surrogates is no text: no file can have it.
    return bool(data.strip()) and len(data) <= MOST_SCRIPT_BYTES and data.decode() == value


script_text = Rule(
    _is_script,
    f"the text of a Python script, at most {MOST_SCRIPT_BYTES} bytes; give more code in a package",
)
script_file = Rule(
    lambda value: isinstance(value, str) and re.fullmatch(r"\w[\w.-]*\.py", value, re.ASCII) is not None,
    "with script: the name of the file that workers write, such as train.py, and then the arguments",
)


def choice(options: Iterable[str]) -> Rule:
    """One of some words, in exactly this spelling."""
    words = tuple(options)
    return Rule(lambda value: value in words, "one of " + ", ".join(words))


def number_in(
    env: Mapping[str, str], name: str, default: int | None = None, *, rule: Rule = non_negative_int
) -> int:
    """A count in an environment variable.

    Args:
        env: the environment.
        name: of the variable.
        default: where it is not set; None: it must be set.
        rule: the allowed values.

    Raises:
        SpecError: it is no such number.
    """
    text = env.get(name)
    if text is None and default is not None:
        return default
    number = int(text) if text is not None and _DIGITS.fullmatch(text.strip()) else text
    if (allowed := rule.broken(number)) is not None:
        raise SpecError(Problem(name, text, allowed))
    return int(number or 0)


#: Enough digits for 64 bits. Python itself refuses to read thousands of digits.
_DIGITS = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)


def not_json(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """The values within a value that JSON cannot express, such as a date, each with its path below this one."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            below = f"{path}.{key}".lstrip(".")
            yield from not_json(one, below) if isinstance(key, str) else ((below, key),)
    elif isinstance(value, list | tuple):
        for i, one in enumerate(value):
            yield from not_json(one, f"{path}.{i}".lstrip("."))
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield path, value
    elif not isinstance(value, str | int | enum.Enum | None):
        yield path, value


class Checks:
    """Collects problems inside a `with` block and raises them together, as one SpecError, at its end."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    @property
    def passed(self) -> bool:
        """Whether all checks so far have passed. It guards rules that compare fields with each other."""
        return not self._problems

    def __call__(self, path: str, value: object, rule: Rule) -> None:
        """Note a problem unless the rule holds for the value."""
        if (allowed := rule.broken(value)) is not None:
            self.that(False, path, value, allowed)

    def that(self, holds: bool, path: str, given: object, allowed: str, *, across: bool = False) -> None:
        """Note a problem unless `holds`; `across` says that the rule compares this field with others."""
        if not holds:
            self._problems.append(Problem(path, given, allowed, across))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._problems:
            raise SpecError(*self._problems)
