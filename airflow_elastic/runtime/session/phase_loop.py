"""The part of a session for phases and epochs: where each of them begins, and where it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_elastic.runtime.collectives.local_sgd import LocalSGD
from airflow_elastic.runtime.data.share import DataShare
from airflow_elastic.runtime.session.epochs import epochs_left
from airflow_elastic.runtime.session.phases import Phase, PhaseProgress, plain
from airflow_elastic.runtime.session.reporting.heartbeat import Heartbeat
from airflow_elastic.runtime.session.resume import Resume
from airflow_elastic.runtime.session.save_schedule import BEST, PHASE, SaveSchedule
from airflow_elastic.spec.checkpoints.phases import PhaseRecord
from airflow_elastic.spec.errors import InvalidInput


class PhaseLoop:
    """Methods with which a script marks its phases and epochs."""

    _averaging: LocalSGD | None
    _progress: PhaseProgress
    _feed: DataShare
    _resume: Resume
    _metrics: dict[str, float]
    _notes: dict[str, Any]
    _trained: set[int]
    _saves: SaveSchedule
    _heartbeat: Heartbeat

    def settle(self) -> None:
        """With `average`: give all ranks the same mean weights, for example to evaluate them. Otherwise do nothing.

        All ranks call this together. `save` and `finish` also do it.
        """
        if self._averaging is not None:
            self._join_saver()
            self._averaging.settle()

    def _join_saver(self) -> None:
        """Wait until a copy that runs beside training is done, so that the objects may change."""
        raise NotImplementedError

    def phase(self, name: str | None = None) -> Phase:
        """One training of several: `with run.phase("finetune") as phase:`. In the same order in each attempt.

        Each phase has its own steps, epochs and position in its data. It may call `restore` with its own objects; if it
        does not, it goes on with those of the phase before.

        After a restart, a complete phase is skipped. In it, `restore` loads the state at its end, and its loops yield
        nothing. At its end everything is as it was then, random generators included.

        Args:
            name: shown in reports. Default: `phase 0`, and so on.

        Returns:
            The phase: its `steps`, whether it is `done`, and its `results`, which `record` keeps.

        Raises:
            InvalidInput: the run had another phase at this place, is in a phase, or has trained outside of phases.
        """
        return Phase(self._progress, name, self._enter, self._leave)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Around one training of a framework, which decides itself whether there is more to do.

        It is a phase of its own, unless the script is in a phase.

        Raises:
            InvalidInput: the script's phase has had a training already.
        """
        progress, within = self._progress, self._progress.current
        if within is not None:
            if progress.number in self._trained:
                raise InvalidInput(
                    f"the phase {within.name!r} has had its training; allowed: one in each phase. For another "
                    "training, begin the next phase"
                )
            self._trained.add(progress.number)
            yield
            return
        name = f"training {progress.number + 1}" if progress.number else "training"
        with Phase(progress, name, self._enter, self._leave, reopen=True):
            yield

    def _enter(self, name: str | None, reopen: bool) -> PhaseRecord:
        self.settle()
        record = self._progress.enter(name, reopen=reopen)
        self._resume.entered()
        self._metrics = {}  # the former phase's metrics do not belong to this one
        self._heartbeat.enter(self._progress.phases)
        return record

    def _leave(self) -> None:
        progress = self._progress
        if progress.idle:
            self._resume.passed_by()
            progress.leave(sealed=False)
        else:
            if self._averaging is not None:
                self._averaging.end()
                self._averaging = None
            self._resume.begin()
            self._saves.forget()
            progress.leave(sealed=self._saves.now(progress.steps, PHASE))
        self._feed.enter(progress.number, passes=False, within=False)
        self._heartbeat.enter(progress.phases)

    def epochs(self, number: int) -> Iterator[int]:
        """Yield the epochs of a training that are left, from the run's current one on.

        Use it around a loop over `loader`, for work that is done once an epoch. A restart does not repeat the body of a
        finished epoch. A save that is due at the last step of an epoch waits for the end of the body. If ranks must end
        at that step, the rest of the body is done after the restart.

        `break` in the body, after the last step of its epoch, ends that epoch. `break` in the inner loop skips the rest
        of the epoch's samples, and the account of samples shows it.

        `for epoch in range(3): for batch in run.loader(data, global_batch=64, epochs=epoch + 1):` works, too. But after
        a restart its body runs again for finished epochs, in which the loader yields nothing. If it changes saved
        objects there, the changes are undone: the checkpoint is loaded again, with a warning.

        Args:
            number: epochs in all, from the beginning of the training.

        Raises:
            InvalidInput: another such loop is running.
        """
        return epochs_left(number, self._feed, self._resume, self._saves, lambda: self._progress.steps)

    @property
    def epoch(self) -> int | None:
        """The current epoch of a loop over `epochs`; None outside of such a loop."""
        return self._feed.epoch

    def report(self, **metrics: float) -> None:
        """Report numbers that were measured outside of a step, such as a validation loss. All ranks call this together.

        They are those of the next checkpoint, too. With `early_stop`, each call that has its metric is a report. If it
        is the best one so far, the run saves. A metric that is given to `step` is a report when its value has changed.

        Args:
            metrics: the numbers. Those of rank 0 count.
        """
        self._metrics = {**self._metrics, **metrics}
        self._heartbeat.reported(self._metrics)
        if (early := self._feed.early) is not None:
            early.note(self._progress.steps, metrics, measured=True)
            if early.agree(measured=True):
                self._saves.now(self._progress.steps, BEST)

    def foresees_end(self, metrics: Mapping[str, Any]) -> bool:
        """Whether the training ends early once the next step is reported with these metrics, just measured.

        For a framework that reports a step after what it does at its end. All ranks call this together.
        """
        early = self._feed.early
        return early is not None and early.would_end(metrics)

    @property
    def stopping(self) -> bool:
        """Whether the training ends early (`early_stop`): `loader` and `epochs` yield nothing more.

        The same on all ranks. A loop without these checks it after each step, and goes on to `finish`.
        """
        return self._feed.ends_early

    def note(self, **values: Any) -> None:
        """Keep a few values with each checkpoint from here on: `run.resumed.notes` has them before `restore`.

        Args:
            values: plain JSON values; None removes one.

        Raises:
            InvalidInput: a value is not plain JSON, or all together are too large.
        """
        kept = plain("run.note", {**self._notes, **values})
        self._notes = {name: value for name, value in kept.items() if value is not None}

    def expect(self, total_steps: int) -> None:
        """Set the planned number of optimizer steps, if `loader` cannot know it."""
        self._expect(total_steps)

    def _expect(self, steps: int) -> None:
        current = self._progress.current
        self._heartbeat.expect(steps + current.from_step if current and steps else steps)
