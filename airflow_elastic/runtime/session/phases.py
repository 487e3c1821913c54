"""The phases of a run, that is, its trainings one after the other: which are complete, and which is the current one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from airflow_elastic.spec.checkpoints.phases import PhaseRecord
from airflow_elastic.spec.errors import InvalidInput

#: The most bytes of a script's notes, or of a phase's results, as JSON: every manifest has a copy of them.
_MOST_BYTES = 64 << 10


@dataclass(slots=True)
class PhaseProgress:
    """The phases of a run, while its script goes through them.

    Attributes:
        stored: the phases in the checkpoint that the run goes on from.
        walked: the phases that the script has left in this attempt.
        current: the phase that the script is in; None between two phases, or if it uses none.
        steps: optimizer steps done since the run began.
        reopened: whether the current phase was complete, but may go on. A framework's loop decides itself whether there
            is more to do.
    """

    stored: tuple[PhaseRecord, ...] = ()
    walked: tuple[PhaseRecord, ...] = ()
    current: PhaseRecord | None = None
    steps: int = 0
    reopened: bool = False

    @property
    def number(self) -> int:
        """Number of the phase that the script is in, or comes to next."""
        return len(self.walked)

    @property
    def known(self) -> PhaseRecord | None:
        """The checkpoint's record of that phase; None if the run had not come to it."""
        return self.stored[self.number] if self.number < len(self.stored) else None

    @property
    def passes(self) -> bool:
        """Whether the current phase was complete, and is skipped.

        A phase without a step has no checkpoint, so it is not skipped.
        """
        known = self.known
        return bool(self.current and known and known.complete and known.steps and not self.reopened)

    @property
    def idle(self) -> bool:
        """Whether the current phase was complete, and has had no step since."""
        return self.passes or bool(
            self.reopened and self.current and self.known and self.current.steps == self.known.steps
        )

    @property
    def begins(self) -> bool:
        """Whether there is no checkpoint of the phase that the script is in, or comes to next."""
        return self.known is None or self.known.steps == 0

    def goes_on(self, phases: tuple[PhaseRecord, ...], step: int) -> None:
        """Note the checkpoint that the run goes on from.

        Args:
            phases: the phases in the checkpoint.
            step: its step.

        Raises:
            InvalidInput: it belongs to another phase than the one that the script is in.
        """
        self.steps = step
        if phases and self.current is not None:
            name = self.current.name
            if len(phases) - 1 != self.number:
                raise InvalidInput(
                    f"the checkpoint of step {step} belongs to phase {len(phases) - 1}, but the script is in phase "
                    f"{self.number}, {name!r}. The run had come further than its last readable checkpoint"
                )
            self.current = replace(phases[-1], name=name)
        elif self.current is not None:
            self.current = replace(self.current, steps=step)
        else:
            self.stored = phases

    def enter(self, name: str | None, *, reopen: bool = False) -> PhaseRecord:
        """Begin the script's next phase.

        Args:
            name: its name; None for the default.
            reopen: whether it may go on if it was the run's last phase, and complete.

        Raises:
            InvalidInput: the script is in a phase, the run had another phase here, or it has trained outside of phases.
        """
        if self.current is not None:
            raise InvalidInput(
                f"run.phase({name!r}): called within the phase {self.current.name!r}; allowed: one after the other"
            )
        if not self.walked and self.steps and not self.stored:
            raise InvalidInput(
                f"run.phase({name!r}): called after {self.steps} steps that belong to no phase. Allowed: phases for "
                "all steps of a run, or for none. Put the training before it into `with run.phase(…):`, too"
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
        """Count an optimizer step.

        Raises:
            InvalidInput: the phase is complete, or the run has phases and the script is in none.
        """
        if self.passes and self.current is not None:
            raise InvalidInput(
                f"run.step: called in the phase {self.current.name!r}, which is complete; allowed: no more steps. "
                "run.loader and run.epochs yield nothing there. In a loop of another kind, check `phase.done`, or "
                "`phase.steps` for the steps that it had"
            )
        if self.current is None and (self.walked or self.stored):
            raise InvalidInput(
                "run.step: called outside of the run's phases "
                f"({', '.join(repr(one.name) for one in self.walked or self.stored)}); allowed: within "
                "`with run.phase(…):`. If a run has phases, all its steps belong to one"
            )
        self.steps += 1
        if self.current is not None:
            self.current = replace(self.current, steps=self.current.steps + 1)

    def check_finish(self) -> None:
        """Raises InvalidInput within a phase: the run cannot be complete yet."""
        if self.current is not None:
            raise InvalidInput(
                f"run.finish: called within the phase {self.current.name!r}, which is complete at the end of its "
                "`with`; allowed: after the last phase. To keep the results of a phase, use `phase.record`"
            )

    def record(self, values: Mapping[str, Any]) -> None:
        """Keep results of the current phase. The results of a phase that was complete stay as they are."""
        if self.current is not None and not self.passes:
            kept = {**self.current.results, **plain("phase.record", values)}
            self.current = replace(self.current, results=plain("phase.record", kept))

    def complete(self, *, sealed: bool) -> tuple[PhaseRecord, ...]:
        """The phases for the checkpoint at the end of the current phase."""
        if self.current is None:
            return self.walked
        return (*self.walked, replace(self.current, complete=True, sealed=sealed))

    def leave(self, *, sealed: bool) -> None:
        """End the current phase. If it was complete before, its record stays as it was."""
        self.walked = self.phases if self.idle else self.complete(sealed=sealed)
        self.current, self.reopened = None, False

    @property
    def phases(self) -> tuple[PhaseRecord, ...]:
        """The phases so far, for a checkpoint."""
        return self.walked if self.current is None else (*self.walked, self.current)


class Phase:
    """One training of a run: `with run.phase("finetune") as phase:`.

    Attributes:
        name: its name.
        number: its number, from 0.
        done: whether it was complete before this attempt came to it. Then `restore` loads the state at its end, loops
            over `run.epochs` and `run.loader` yield nothing, and `record` changes nothing.
    """

    def __init__(
        self, progress: PhaseProgress, name: str | None, enter: Enter, leave: Leave, *, reopen: bool = False
    ) -> None:
        self._progress, self._enter, self._leave, self._reopen = progress, enter, leave, reopen
        self.name, self.number, self.done = name or "", progress.number, False
        self._left: PhaseRecord | None = None

    @property
    def steps(self) -> int:
        """Optimizer steps of this phase, over all attempts."""
        return self._record.steps

    @property
    def results(self) -> dict[str, Any]:
        """The results that were recorded, in this attempt or in an earlier one."""
        return dict(self._record.results)

    def record(self, **results: Any) -> None:
        """Keep results with the run's checkpoints, so that a restart that skips the phase still has them.

        Args:
            results: a few plain JSON values.

        Raises:
            InvalidInput: a value is not plain JSON, or all together are too large.
        """
        if self._left is not None or self._progress.current is None or self._progress.number != self.number:
            raise InvalidInput(f"phase.record: the phase {self.name!r} is not the current one")
        self._progress.record(results)

    @property
    def _record(self) -> PhaseRecord:
        if self._left is not None:
            return self._left
        if self._progress.number == self.number and self._progress.current is not None:
            return self._progress.current
        return PhaseRecord(self.name)

    def __enter__(self) -> Phase:
        self.number = self._progress.number
        record = self._enter(self.name or None, self._reopen)
        self.name, self.done = record.name, self._progress.passes and record.sealed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._leave()
            self._left = self._progress.walked[self.number]


#: Begin a phase with a name, and whether it may be reopened; and end it.
Enter = Callable[[str | None, bool], PhaseRecord]
Leave = Callable[[], None]


def plain(who: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as JSON stores them. Raises InvalidInput if JSON would change them, or they are too large."""
    for name, value in values.items():
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(
                f"{who}, {name!r}: given {type(value).__name__}; allowed: plain JSON values. These are finite numbers, "
                f"strings, and lists or dicts of them ({error})"
            ) from error
        if json.loads(text) != value and not isinstance(value, tuple):
            raise InvalidInput(f"{who}, {name!r}: given {value!r}; allowed: values that JSON does not change")
    if (size := len(json.dumps(dict(values)))) > _MOST_BYTES:
        raise InvalidInput(
            f"{who}: given {size} bytes; allowed: {_MOST_BYTES} in all, because each checkpoint has a copy. Keep "
            "larger values in an object with state_dict: run.restore(model, optimizer, name=object)"
        )
    return json.loads(json.dumps(dict(values)))  # type: ignore[no-any-return]
