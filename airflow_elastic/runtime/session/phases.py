"""The trainings of a run, one after the other: which of them are over, and in which one the run stands."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from airflow_elastic.spec.checkpoints.phases import PhaseRecord
from airflow_elastic.spec.errors import InvalidInput

#: What a script keeps beside its checkpoints is for a few values: each manifest has all of them.
_MOST_BYTES = 64 << 10


@dataclass(slots=True)
class PhaseProgress:
    """What a run has come through, as its script goes through it.

    Attributes:
        stored: the phases as the checkpoint tells of them that the run goes on from.
        walked: those that the script has left, in this attempt.
        current: the one that it is in; None where it speaks of no phases, or is between two.
        steps: optimizer steps done since the run began.
        reopened: whether the phase that the script is in was complete, and may go on all the same: its loop knows
            itself whether there is more to do than there was.
    """

    stored: tuple[PhaseRecord, ...] = ()
    walked: tuple[PhaseRecord, ...] = ()
    current: PhaseRecord | None = None
    steps: int = 0
    reopened: bool = False

    @property
    def number(self) -> int:
        """Of the phase that the script is in, or comes to next."""
        return len(self.walked)

    @property
    def known(self) -> PhaseRecord | None:
        """What the checkpoint tells of that phase; None where the run has not come to it."""
        return self.stored[self.number] if self.number < len(self.stored) else None

    @property
    def passes(self) -> bool:
        """Whether the phase that the script is in is complete. One without a step has left no checkpoint: it is gone
        through again.
        """
        known = self.known
        return bool(self.current and known and known.complete and known.steps and not self.reopened)

    @property
    def idle(self) -> bool:
        """Whether the phase was complete, and nothing was done in it since."""
        return self.passes or bool(
            self.reopened and self.current and self.known and self.current.steps == self.known.steps
        )

    @property
    def begins(self) -> bool:
        """Whether no checkpoint is of the phase that the script is in."""
        return self.known is None or self.known.steps == 0

    def goes_on(self, phases: tuple[PhaseRecord, ...], step: int) -> None:
        """The checkpoint that the run goes on from is this one, of that step.

        Raises:
            InvalidInput: it is of another phase than the script is in.
        """
        self.steps = step
        if phases and self.current is not None:
            name = self.current.name
            if len(phases) - 1 != self.number:
                raise InvalidInput(
                    f"the checkpoint of step {step} is of phase {len(phases) - 1}, and the script is in phase "
                    f"{self.number}, {name!r}: it has come further than what is left of its checkpoints"
                )
            self.current = replace(phases[-1], name=name)
        elif self.current is not None:
            self.current = replace(self.current, steps=step)
        else:
            self.stored = phases

    def enter(self, name: str | None, *, reopen: bool = False) -> PhaseRecord:
        """The script begins its next phase; one that was the last, and is complete, may go on with `reopen`.

        Raises:
            InvalidInput: it is in one; the run had another phase there; or it has trained outside of phases.
        """
        if self.current is not None:
            raise InvalidInput(
                f"run.phase({name!r}): given within the phase {self.current.name!r}; allowed: one after the other"
            )
        if not self.walked and self.steps and not self.stored:
            raise InvalidInput(
                f"run.phase({name!r}): given after {self.steps} steps that belong to no phase; allowed: phases for all "
                "of a run, or for nothing of it: put what comes before into `with run.phase(…):`, too"
            )
        name, known = name or f"phase {self.number}", self.known
        last = known is not None and self.number == len(self.stored) - 1
        self.reopened = bool(reopen and last and known and known.complete and known.steps)
        if known is not None and known.name not in ("", name):
            raise InvalidInput(
                f"run.phase({name!r}): phase {self.number} of this run is {known.name!r}; allowed: the same phases in "
                "the same order as when it began. For others, begin a run with another URI"
            )
        if known is not None and known.steps:
            self.current = replace(known, name=name)
            self.steps = known.to_step
        else:
            self.current = PhaseRecord(name, self.steps)
        return self.current

    def stepped(self) -> None:
        """An optimizer step is done.

        Raises:
            InvalidInput: the phase is complete, or the run has phases and the script is in none.
        """
        if self.passes and self.current is not None:
            raise InvalidInput(
                f"run.step: given in the phase {self.current.name!r}, which is complete; allowed: nothing, as a "
                "restart passes by it. run.loader and run.epochs give nothing there; for a loop of another kind ask "
                "`phase.done`, or `phase.steps`, which is what it had"
            )
        if self.current is None and (self.walked or self.stored):
            raise InvalidInput(
                "run.step: given outside of the run's phases "
                f"({', '.join(repr(one.name) for one in self.walked or self.stored)}); allowed: within "
                "`with run.phase(…):`, as all training of a run that has phases"
            )
        self.steps += 1
        if self.current is not None:
            self.current = replace(self.current, steps=self.current.steps + 1)

    def check_finish(self) -> None:
        """Raises InvalidInput where the run cannot be complete yet."""
        if self.current is not None:
            raise InvalidInput(
                f"run.finish: given within the phase {self.current.name!r}, which is complete at the end of its "
                "`with`; allowed: after the last phase. What is measured of a phase is kept by `phase.record`"
            )

    def record(self, values: Mapping[str, Any]) -> None:
        """Keep results of the phase that the script is in; those of one that is complete stay as they are."""
        if self.current is not None and not self.passes:
            kept = {**self.current.results, **plain("phase.record", values)}
            self.current = replace(self.current, results=plain("phase.record", kept))

    def complete(self, *, sealed: bool) -> tuple[PhaseRecord, ...]:
        """The phases as they are to be told of when the one that the script is in is over."""
        if self.current is None:
            return self.walked
        return (*self.walked, replace(self.current, complete=True, sealed=sealed))

    def leave(self, *, sealed: bool) -> None:
        """The phase is over; as it was told of, where it had been before."""
        self.walked = self.phases if self.idle else self.complete(sealed=sealed)
        self.current, self.reopened = None, False

    @property
    def phases(self) -> tuple[PhaseRecord, ...]:
        """So far, for a checkpoint."""
        return self.walked if self.current is None else (*self.walked, self.current)


class Phase:
    """One training of a run: `with run.phase("finetune") as phase:`.

    Attributes:
        name: as it was given.
        number: in the order of phases, from 0.
        done: whether it was complete before this attempt came to it: `restore` gives the state that it ended with,
            loops of `run.epochs` and `run.loader` give nothing, and what is recorded stays as it was.
    """

    def __init__(
        self, course: PhaseProgress, name: str | None, enter: Enter, leave: Leave, *, reopen: bool = False
    ) -> None:
        self._course, self._enter, self._leave, self._reopen = course, enter, leave, reopen
        self.name, self.number, self.done = name or "", course.number, False
        self._left: PhaseRecord | None = None

    @property
    def steps(self) -> int:
        """Optimizer steps of this phase, over all attempts."""
        return self._record.steps

    @property
    def results(self) -> dict[str, Any]:
        """What was recorded of it, in this attempt or in an earlier one."""
        return dict(self._record.results)

    def record(self, **results: Any) -> None:
        """Keep results with the run's checkpoints: they are there when a restart passes by the phase.

        Args:
            results: plain JSON values, a few of them.

        Raises:
            InvalidInput: a value is none of JSON, or all together are too large.
        """
        if self._left is not None or self._course.current is None or self._course.number != self.number:
            raise InvalidInput(f"phase.record: the phase {self.name!r} is not the one that the run is in")
        self._course.record(results)

    @property
    def _record(self) -> PhaseRecord:
        if self._left is not None:
            return self._left
        if self._course.number == self.number and self._course.current is not None:
            return self._course.current
        return PhaseRecord(self.name)

    def __enter__(self) -> Phase:
        self.number = self._course.number
        record = self._enter(self.name or None, self._reopen)
        self.name, self.done = record.name, self._course.passes and record.sealed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._leave()
            self._left = self._course.walked[self.number]


#: Begin a phase of that name, which may go on although it was complete; and end it.
Enter = Callable[[str | None, bool], PhaseRecord]
Leave = Callable[[], None]


def plain(who: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON keeps them. Raises InvalidInput where it keeps other ones, or they are too large."""
    for name, value in values.items():
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(
                f"{who}: {name}: given {type(value).__name__}; allowed: plain JSON values, as numbers that are finite, "
                f"texts, lists and mappings of them ({error})"
            ) from error
        if json.loads(text) != value and not isinstance(value, tuple):
            raise InvalidInput(f"{who}: {name}: given {value!r}; allowed: what JSON keeps as it is")
    if (size := len(json.dumps(dict(values)))) > _MOST_BYTES:
        raise InvalidInput(
            f"{who}: given {size} bytes; allowed: {_MOST_BYTES} of all together, as each checkpoint has them. What is "
            "larger is kept by an object with state_dict: run.restore(model, optimizer, name=object)"
        )
    return json.loads(json.dumps(dict(values)))  # type: ignore[no-any-return]
