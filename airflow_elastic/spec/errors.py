"""Errors that teach: each says what was given, what is allowed and what to do next.

`ElasticError` is what a caller catches. The subclasses differ in who has to act: `InvalidInput` the person who typed
it (exit code 2), the others whoever runs the machine or the storage.
"""

from __future__ import annotations

from dataclasses import dataclass


class ElasticError(Exception):
    """Base of every error that airflow-elastic raises on purpose. Its text is one sentence for a person."""


class InvalidInput(ElasticError):
    """What was asked for cannot be done as asked: nothing has been created or changed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One bad value: the path of its field, what was given, what is allowed."""

    path: str
    given: object
    allowed: str

    def __str__(self) -> str:
        given = repr(self.given)
        if len(given) > 80:
            given = given[:77] + "..."
        return f"{self.path}: given {given}; allowed: {self.allowed}"


class SpecError(InvalidInput):
    """A run specification with bad values: all of them, not only the first."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems

    def below(self, path: str) -> SpecError:
        """The same problems, seen from the object that holds this one under the field `path`."""
        return SpecError(*(Problem(f"{path}.{p.path}", p.given, p.allowed) for p in self.problems))


class RunMissing(InvalidInput):
    """A URI that holds no run."""


class RunDiffers(InvalidInput):
    """A URI that holds another run than the one that was asked for."""


class StoreError(ElasticError):
    """The storage under a run URI failed, after retries."""


class StoreUnfit(StoreError):
    """The storage works but cannot carry a journal: it ignores conditional writes, or cannot be written to."""


class EngineError(ElasticError):
    """An engine could not do what it was told; trying again may help."""


class SubmitRefused(EngineError):
    """The engine will never accept this job as it is: trying again cannot help."""
