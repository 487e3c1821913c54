"""Errors that teach: each has the given value, the allowed ones, and what to do next.

Callers catch `ElasticError`. Its subclasses differ in who has to act. For `InvalidInput` it is the person who typed it
(exit code 2). For the others it is the person who runs the machine or the storage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final


class ElasticError(Exception):
    """Base of every error that airflow-elastic raises on purpose. Its text is one sentence for a person."""


class InvalidInput(ElasticError):
    """The request cannot be carried out as it is: nothing has been created or changed."""


#: Given for a field that was left out, or that does not exist: there is no value to show.
ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Problem:
    """One bad value: the path of its field, the given value, the allowed ones.

    Attributes:
        path: of the field. `allowed` refers to other fields by their whole paths.
        given: the value; ABSENT if the problem is not a value.
        allowed: the allowed values, in words; with ABSENT, what is wrong.
        across: whether the rule compares several fields. It is ignored as long as one of these could not be decoded.
    """

    path: str
    given: object
    allowed: str
    across: bool = False

    def at(self, path: str) -> Problem:
        """The same problem, under another path."""
        return replace(self, path=path)

    def renamed(self, path: str, names: Mapping[str, str]) -> Problem:
        """The same problem under another path, with other names for other fields too.

        Args:
            path: the new name of this field.
            names: new names of the fields in `allowed`, by their paths.
        """
        return replace(self, path=path, allowed=in_words(self.allowed, names))

    def __str__(self) -> str:
        if self.given is ABSENT:
            return f"{self.path}: {self.allowed}"
        return f"{self.path}: given {shown(self.given)}; allowed: {self.allowed}"


def shown(value: object) -> str:
    """A value as an error shows it: its Python form, in one line at most."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print an integer of thousands of digits
        return f"{type(value).__name__} of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "..."


def in_words(text: str, names: Mapping[str, str]) -> str:
    """The same text, with other names for the fields that it mentions by their whole paths."""
    known = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    pattern = rf"(?<![\w.-])(?:{known})(?![\w-]|\.\w)"
    return re.sub(pattern, lambda found: names[found[0]], text) if names else text


class SpecError(InvalidInput):
    """A run specification with bad values: all of them, not only the first."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems

    def below(self, path: str) -> SpecError:
        """The same problems, seen from the object that holds this one under the field `path`."""
        return SpecError(*(p.at(f"{path}.{p.path}") for p in self.problems))


class RunMissing(InvalidInput):
    """A URI that holds no run."""


class CheckpointMissing(InvalidInput):
    """A run that has no checkpoint of the step that was asked for: it never had one, or has removed it."""


class RunDiffers(InvalidInput):
    """A URI that holds a run other than the one that was asked for.

    Args:
        problem: the URI, and how the runs differ.
        workers: the number that was asked for, if nothing else differs and the run allows it.
        advice: what to do. `advised` replaces it where the caller knows better.
    """

    def __init__(
        self, problem: str, *, workers: int | None = None, advice: str = "use another run URI"
    ) -> None:
        super().__init__(f"{problem}: {advice}")
        self.problem, self.workers = problem, workers

    def advised(self, advice: str) -> RunDiffers:
        """The same, with other advice."""
        return RunDiffers(self.problem, workers=self.workers, advice=advice)


class StoreError(ElasticError):
    """The storage under a run URI failed, after retries."""


class StoreFull(StoreError):
    """The storage has no room left."""


class StoreUnfit(StoreError):
    """The storage works but cannot carry a journal: it ignores conditional writes, or cannot be written to."""


class EngineError(ElasticError):
    """An engine could not do something; trying again may help."""


class SubmitRefused(EngineError):
    """The engine does not accept this job as it is: trying again at once cannot help.

    Attributes:
        for_now: whether a rule refuses it that people may change, such as a closed queue. A run whose jobs were
            accepted before waits for that; for other runs the refusal is final.
    """

    def __init__(self, text: str, *, for_now: bool = False) -> None:
        super().__init__(text)
        self.for_now = for_now


class SubmitHeld(EngineError):
    """The engine does not accept this job yet, but will later without any change, e.g. when a quota is free again."""
