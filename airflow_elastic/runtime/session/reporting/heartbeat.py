"""A rank's reports to its agent: numbers in a shared page at each step, more once a second; the script's as JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.host.shared_page import Page
from airflow_elastic.adapters.records.job_files import RankNote
from airflow_elastic.core.units import non_finite_word
from airflow_elastic.runtime.checkpoint.tensors.host_numbers import HostNumbers
from airflow_elastic.runtime.session.reporting.forward_timer import ForwardTimer
from airflow_elastic.runtime.session.reporting.logging_to_output import log_to_output
from airflow_elastic.runtime.staying.agent_link import has_stayed
from airflow_elastic.spec.codec import encode

if TYPE_CHECKING:
    import torch

    from airflow_elastic.runtime.checkpoint.save.save import Position
    from airflow_elastic.runtime.environment import RankEnvironment
    from airflow_elastic.spec.checkpoints.phases import PhaseRecord
    from airflow_elastic.spec.training.early_stop import Watch

_NOTE_SECONDS = 1.0


log = logging.getLogger(__name__)


class Heartbeat:
    """Reports what a rank does. Without an agent (outside of airflow-elastic) it costs next to nothing.

    Args:
        surroundings: the rank's environment.
        total_steps: planned steps of the training, if known.

    Attributes:
        early: the metric that decides whether training ends early.
        words: the numbers in the page; without an agent, private memory.
    """

    def __init__(self, surroundings: RankEnvironment, total_steps: int | None) -> None:
        path = surroundings.page
        self._page = Page.create(path) if path is not None else None
        self.words = self._page.words if self._page else memoryview(bytearray(256)).cast("d")
        if path is not None:
            log_to_output()
        self.early: Callable[[], Watch | None] = lambda: None
        self._note_path = path.with_suffix(".json") if path is not None else None
        self._noted_at, self._noted_step, self._noted_samples = time.monotonic(), 0, 0
        self._last_note = RankNote()
        self._phases: tuple[PhaseRecord, ...] = ()
        self._total_is_given = bool(total_steps)
        self._clock: ForwardTimer | None = None
        self._last: float | None = None  # when the step before this one ended
        self._loss: torch.Tensor | float | None = None  # of the last step, without its graph
        self._late: tuple[HostNumbers, HostNumbers] | None = (
            None  # a loss and metrics that are still to be reported
        )
        self.words[shared_page.TOTAL_STEPS] = float(total_steps or 0)
        self.words[shared_page.ATTACHED] = 1.0

    @property
    def park_ordered(self) -> float:
        """1.0 if this rank must save and stop."""
        return float(self.words[shared_page.PARK])

    @property
    def saves_ordered(self) -> float:
        """How many orders to save there have been."""
        return float(self.words[shared_page.SAVE])

    def listen(self, model: torch.nn.Module) -> None:
        """Measure and report how long the forward pass of this model takes."""
        self._clock = ForwardTimer(model)

    def unlisten(self) -> None:
        """Let go of the model, and of the loss."""
        self._loss, self._late = None, None
        if self._clock is not None:
            self._clock.end()
            self._clock = None

    def expect(self, total_steps: int) -> None:
        """Report the planned number of steps, unless one is reported already."""
        self.words[shared_page.TOTAL_STEPS] = self.words[shared_page.TOTAL_STEPS] or float(total_steps)

    def enter(self, phases: tuple[PhaseRecord, ...]) -> None:
        """Report the run's phases so far. The planned number of steps is forgotten, unless `init` was given it."""
        self._phases = phases
        if not self._total_is_given:
            self.words[shared_page.TOTAL_STEPS] = 0.0
        self._write_note(self._last_note.metrics)

    def restoring(self, done: int, whole: int) -> None:
        """Report how many bytes of the checkpoint are read, of all that must be read. This counts as progress."""
        words = self.words
        words[shared_page.RESTORED], words[shared_page.TO_RESTORE], words[shared_page.MOVED_AT] = (
            done,
            whole,
            time.time(),
        )

    def restored(self, step: int, position: Position, seconds: float, *, verified: bool) -> None:
        """Report that training goes on from `step`.

        Args:
            step: step of the checkpoint; 0 without one.
            position: the position in the data.
            seconds: how long restoring took.
            verified: whether all ranks have read the checkpoint whole, from storage only.
        """
        words = self.words
        words[shared_page.VERIFIED] = time.time() if verified else 0.0
        words[shared_page.STEP] = words[shared_page.FROM_STEP] = float(step)
        words[shared_page.EPOCH], words[shared_page.SAMPLES] = float(position.epoch), float(position.samples)
        words[shared_page.RESTORING] = seconds
        self._noted_step, self._noted_samples = step, position.samples
        self._note(position)
        self._write_loss(None)
        self._write_note({})

    def stepped(
        self, step: int, position: Position, loss: torch.Tensor | float | None, metrics: Mapping[str, float]
    ) -> None:
        """Report an optimizer step."""
        words, now, wall = self.words, time.monotonic(), time.time()
        if self._last is None:  # the time until the first step counts as start-up
            words[shared_page.FIRST_STEP_AT] = wall
        else:
            words[shared_page.STEPPING] += now - self._last
        self._last = now
        words[shared_page.EPOCH], words[shared_page.SAMPLES] = float(position.epoch), float(position.samples)
        words[shared_page.STEP], words[shared_page.MOVED_AT] = float(step), wall
        self._loss = loss if loss is None or isinstance(loss, int | float) else loss.detach()
        if now - self._noted_at >= _NOTE_SECONDS:
            self._note(position)
            if (
                self._late is None
            ):  # else GPUs that take seconds for a step would never have an older one reported
                self._late = HostNumbers({} if loss is None else {"loss": loss}), HostNumbers(metrics)
        if self._late is not None:
            self._write_late(*self._late)

    def reported(self, metrics: Mapping[str, float]) -> None:
        """Report numbers that were measured outside of a step."""
        self.works()
        self._write_note(metrics)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Around a save: its time does not count as part of a step."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.words[shared_page.SAVING] += self._stood_still(began)

    def works(self) -> None:
        """Report that the rank works on something else than a step, and does not hang."""
        self.words[shared_page.MOVED_AT] = time.time()

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Around work whose time does not count as part of a step."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._noted_at += self._stood_still(began)

    def _stood_still(self, began: float) -> float:
        """Take the time since `began` out of the current step, and report that the rank does not hang. Returns it."""
        spent = time.monotonic() - began
        if self._last is not None:
            self._last += spent
        self.works()
        return spent

    def parked(self) -> None:
        """Report that the rank has saved, and waits to be ended."""
        self.words[shared_page.PARKED] = 1.0

    def finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report that training is complete."""
        self._late = None
        self.words[shared_page.TOTAL_STEPS], self.words[shared_page.MEMORY] = float(step), float(_memory())
        # A compiled model may have overwritten its last loss since, by a pass that evaluates it.
        with contextlib.suppress(RuntimeError):
            self._write_loss(None if self._loss is None else float(self._loss))
        self._write_note(metrics)
        self.words[shared_page.FINISHED] = 1.0

    def _note(self, position: Position) -> None:
        words, now = self.words, time.monotonic()
        seconds, step = max(now - self._noted_at, 1e-9), int(words[shared_page.STEP])
        steps, samples = step - self._noted_step, position.samples - self._noted_samples
        words[shared_page.STEP_SECONDS] = seconds / steps if steps else 0.0
        words[shared_page.FORWARD_SECONDS] = self._clock.mean() if self._clock else 0.0
        words[shared_page.SAMPLES_PER_SECOND], words[shared_page.MEMORY] = samples / seconds, float(_memory())
        self._noted_at, self._noted_step, self._noted_samples = now, step, position.samples

    def _write_late(self, loss: HostNumbers, metrics: HostNumbers) -> None:
        """Write numbers that were taken at this step or an earlier one, if they have come from the GPU."""
        if loss.ready and metrics.ready:
            self._late = None
            self._write_loss(loss.read().get("loss"))
            self._write_note(metrics.read())

    def _write_loss(self, loss: float | None) -> None:
        is_finite = loss is not None and math.isfinite(loss)
        told = float(is_finite)
        if loss is not None and not is_finite:
            told = 2.0 + shared_page.ODD_LOSSES.index(non_finite_word(loss) or "NaN")
        self.words[shared_page.LOSS_TOLD] = told
        self.words[shared_page.LOSS] = loss if loss is not None and is_finite else 0.0

    def _write_note(self, metrics: Mapping[str, float]) -> None:
        """Write the script's numbers if they are new. That takes as long as a hundred updates of the page."""
        odd = {
            name: word
            for name, value in metrics.items()
            if (word := non_finite_word(float(value))) is not None
        }
        note = RankNote(finite(metrics), self._phases, odd, self.early(), has_stayed() or None)
        if self._note_path is None or note == self._last_note:
            return
        temporary = Path(f"{self._note_path}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(encode(note)))
            temporary.replace(self._note_path)
        except OSError as error:  # e.g. a full disk: no reason to end training
            log.warning("the metrics of this rank cannot be reported: %s", error)
        else:
            self._last_note = note


def finite(numbers: Mapping[str, float]) -> dict[str, float]:
    """The finite ones. JSON cannot store the others, and one of them would make the whole document invalid."""
    plain = {name: float(value) for name, value in numbers.items()}
    return {name: value for name, value in plain.items() if math.isfinite(value)}


def number_of(loss: torch.Tensor | float | None) -> float | None:
    """A loss as a number; None if there is none, or it is not finite. On a GPU this synchronises."""
    if loss is None:
        return None
    number = float(loss) if isinstance(loss, int | float) else float(loss.detach())
    return number if math.isfinite(number) else None


def _memory() -> int:
    """The most memory this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
