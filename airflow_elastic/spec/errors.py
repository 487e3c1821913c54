"""Errors that teach: each says what was given, what is allowed and what to do next.

`ElasticError` is what a caller catches. The subclasses differ in who has to act: `InvalidInput` the person who typed
it (exit code 2), the others whoever runs the machine or the storage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final


class ElasticError(Exception):
    """Base of every error that airflow-elastic raises on purpose. Its text is one sentence for a person."""


class InvalidInput(ElasticError):
    """What was asked for cannot be done as asked: nothing has been created or changed."""


#: Given of a field that was left out, or that does not exist: there is no value to show.
ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Problem:
    """One bad value: the path of its field, what was given, what is allowed.

    Attributes:
        path: of the field; of others, `allowed` speaks by their whole paths.
        given: the value; ABSENT where the trouble is not with a value.
        allowed: what is, in words; with ABSENT, what is wrong.
        across: whether other fields have a part in it, so that it is none as long as those are not known.
    """

    path: str
    given: object
    allowed: str
    across: bool = False

    def at(self, path: str) -> Problem:
        """The same problem, under another path."""
        return replace(self, path=path)

    def renamed(self, path: str, names: Mapping[str, str]) -> Problem:
        """The same problem under another path, with other words for other fields too.

        Args:
            path: what to call this field.
            names: what to call fields in `allowed`, by their paths.
        """
        return replace(self, path=path, allowed=in_words(self.allowed, names))

    def __str__(self) -> str:
        if self.given is ABSENT:
            return f"{self.path}: {self.allowed}"
        return f"{self.path}: given {shown(self.given)}; allowed: {self.allowed}"


def shown(value: object) -> str:
    """A value as an error has it: as Python writes it, and no longer than a line."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of thousands of digits
        return f"{type(value).__name__} of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "..."


def in_words(text: str, names: Mapping[str, str]) -> str:
    """The same text, with other words for the fields that it names by their whole paths."""
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


class RunDiffers(InvalidInput):
    """A URI that holds another run than the one that was asked for.

    Args:
        problem: which URI, and in what the runs differ.
        workers: the number that was asked for, where that is all, and one that the run allows.
        advice: what to do. Whoever knows where this will be read has better advice, see `advised`.
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
    """There is no room for what was to be stored."""


class StoreUnfit(StoreError):
    """The storage works but cannot carry a journal: it ignores conditional writes, or cannot be written to."""


class EngineError(ElasticError):
    """An engine could not do what it was told; trying again may help."""


class SubmitRefused(EngineError):
    """The engine does not accept this job as it is: trying again at once cannot help.

    Attributes:
        for_now: whether it is refused by a rule that people may change, such as a closed queue. A run whose jobs were
            accepted before waits for that; for others the refusal is final.
    """

    def __init__(self, text: str, *, for_now: bool = False) -> None:
        super().__init__(text)
        self.for_now = for_now


class SubmitHeld(EngineError):
    """The engine does not accept this job yet, and will by itself: a quota is used up, say."""
