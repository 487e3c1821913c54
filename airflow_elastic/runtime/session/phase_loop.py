"""The part of a session that knows of several trainings and epochs: where they begin, and where they end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from airflow_elastic.runtime.collectives.local_sgd import LocalSGD
from airflow_elastic.runtime.data.share import DataShare
from airflow_elastic.runtime.session.epochs import epochs_left
from airflow_elastic.runtime.session.heartbeat import Heartbeat
from airflow_elastic.runtime.session.phases import Phase, PhaseProgress, plain
from airflow_elastic.runtime.session.resume import Resume
from airflow_elastic.runtime.session.save_schedule import PHASE, SaveSchedule
from airflow_elastic.spec.checkpoints.phases import PhaseRecord
from airflow_elastic.spec.errors import InvalidInput


class PhaseLoop:
    """What a script says of its trainings."""

    _averaging: LocalSGD | None
    _course: PhaseProgress
    _feed: DataShare
    _going_on: Resume
    _metrics: dict[str, float]
    _notes: dict[str, Any]
    _trained: set[int]
    _saves: SaveSchedule
    _voice: Heartbeat

    def settle(self) -> None:
        """Have all ranks go on from the same weights, where `average` has them train by themselves: to evaluate them.

        All ranks call this together. `save` and `finish` do so, too.
        """
        if self._averaging is not None:
            self._join_saver()
            self._averaging.settle()

    def _join_saver(self) -> None:
        """What is copied beside training is copied then, and may be changed."""
        raise NotImplementedError

    def phase(self, name: str | None = None) -> Phase:
        """One training of several: `with run.phase("finetune") as phase:`, in the same order in each attempt.

        Each has steps, epochs, a place in its data, and objects of its own, from `restore`; without that those of the
        phase before. Where a restart comes to one that is complete, `restore` gives what it had ended with, its loops
        give nothing, and at its end everything, luck included, is as it was then.

        Args:
            name: for whoever looks. Default: `phase 0`, and so on.

        Returns:
            The phase: its `steps`, whether it is `done`, and its `results`, which `record` keeps.

        Raises:
            InvalidInput: the run had another phase there, is in one, or has trained outside of phases.
        """
        return Phase(self._course, name, self._enter, self._leave)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Around one training of a framework, which knows itself whether there is more to do: a phase, unless the
        script is in one.

        Raises:
            InvalidInput: there was a training in that one already.
        """
        course, within = self._course, self._course.current
        if within is not None:
            if course.number in self._trained:
                raise InvalidInput(
                    f"the phase {within.name!r} has had its training; allowed: one in each phase. For another one "
                    "leave it, and begin the next"
                )
            self._trained.add(course.number)
            yield
            return
        name = f"training {course.number + 1}" if course.number else "training"
        with Phase(course, name, self._enter, self._leave, reopen=True):
            yield

    def _enter(self, name: str | None, reopen: bool) -> PhaseRecord:
        self.settle()
        record = self._course.enter(name, reopen=reopen)
        self._going_on.entered()
        self._metrics = {}  # those of the phase before are none of this one
        self._voice.enter(self._course.phases)
        return record

    def _leave(self) -> None:
        course = self._course
        if course.idle:
            self._going_on.passed_by()
            course.leave(sealed=False)
        else:
            if self._averaging is not None:
                self._averaging.end()
                self._averaging = None
            self._going_on.begin()
            self._saves.forget()
            course.leave(sealed=self._saves.now(course.steps, PHASE))
        self._feed.enter(course.number, passes=False, within=False)
        self._voice.enter(course.phases)

    def epochs(self, number: int) -> Iterator[int]:
        """Yield the epochs of a training that are left, from the one that the run stands in: for what is done once an
        epoch, around a loop over `loader`.

        What the body does of an epoch that is over is not done again. A save that falls due with the last step of an
        epoch waits for the end of the body; where ranks have to end at that step, what is left of the body is done when
        the run goes on.

        `break` in the body, after the last step of its epoch, ends that epoch. `break` in the inner loop leaves out the
        rest of the epoch, and the account of samples shows it.

        `for epoch in range(3): for batch in run.loader(data, global_batch=64, epochs=epoch + 1):` works, too. But its
        body runs again for finished epochs, in which the loader gives nothing. Changes of saved objects there are
        undone: the checkpoint is loaded again, with a warning.

        Args:
            number: epochs in all, from the beginning of the training.

        Raises:
            InvalidInput: another such loop is under way.
        """
        return epochs_left(number, self._feed, self._going_on, self._saves, lambda: self._course.steps)

    @property
    def epoch(self) -> int | None:
        """The one that a loop over `epochs` is at; None outside of such a loop."""
        return self._feed.epoch

    def note(self, **values: Any) -> None:
        """Keep a few values with each checkpoint from here on: `run.resumed.notes` has them before `restore`.

        Args:
            values: plain JSON values; None forgets one.

        Raises:
            InvalidInput: a value is none of JSON, or all together are too large.
        """
        kept = plain("run.note", {**self._notes, **values})
        self._notes = {name: value for name, value in kept.items() if value is not None}

    def expect(self, total_steps: int) -> None:
        """Say how many optimizer steps the training is meant to have, where `loader` does not know it."""
        self._expect(total_steps)

    def _expect(self, steps: int) -> None:
        current = self._course.current
        self._voice.expect(steps + current.from_step if current and steps else steps)
