"""A rank's own words: numbers into its page with every step, further ones once a second; the script's own as JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import resource
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.host.shared_page import Page
from airflow_elastic.adapters.records.job_files import RankNote
from airflow_elastic.runtime.session.forward_timer import ForwardTimer
from airflow_elastic.runtime.session.logging_to_output import log_to_output
from airflow_elastic.spec.codec import encode

if TYPE_CHECKING:
    import torch

    from airflow_elastic.runtime.checkpoint.save.save import Position
    from airflow_elastic.runtime.environment import RankEnvironment
    from airflow_elastic.spec.checkpoints.phases import PhaseRecord

_NOTE_SECONDS = 1.0


log = logging.getLogger(__name__)


class Heartbeat:
    """Says what a rank does. Where nobody listens (no airflow-elastic around), it costs next to nothing.

    Args:
        surroundings: where the rank finds itself.
        total_steps: steps the training is meant to have, if that is known.

    Attributes:
        words: of the page, or of memory that nobody else sees.
    """

    def __init__(self, surroundings: RankEnvironment, total_steps: int | None) -> None:
        path = surroundings.page
        self._page = Page.create(path) if path is not None else None
        self.words = self._page.words if self._page else memoryview(bytearray(256)).cast("d")
        if path is not None:
            log_to_output()
        self._note_path = path.with_suffix(".json") if path is not None else None
        self._noted_at, self._noted_step, self._noted_samples = time.monotonic(), 0, 0
        self._said = RankNote()
        self._phases: tuple[PhaseRecord, ...] = ()
        self._is_told = bool(total_steps)
        self._clock: ForwardTimer | None = None
        self._last: float | None = None  # when the step before this one ended
        self.words[shared_page.TOTAL_STEPS] = float(total_steps or 0)
        self.words[shared_page.ATTACHED] = 1.0

    @property
    def park_ordered(self) -> float:
        """1.0 when this rank is to save and stop."""
        return float(self.words[shared_page.PARK])

    @property
    def saves_ordered(self) -> float:
        """How many orders to save there have been."""
        return float(self.words[shared_page.SAVE])

    def listen(self, model: torch.nn.Module) -> None:
        """Say how long this rank's own part of a step takes, which is of this model."""
        self._clock = ForwardTimer(model)

    def expect(self, total_steps: int) -> None:
        """The training is meant to have so many steps, unless the script has said otherwise."""
        self.words[shared_page.TOTAL_STEPS] = self.words[shared_page.TOTAL_STEPS] or float(total_steps)

    def enter(self, phases: tuple[PhaseRecord, ...]) -> None:
        """The run has come so far in its trainings: how many steps there will be is said anew."""
        self._phases = phases
        if not self._is_told:
            self.words[shared_page.TOTAL_STEPS] = 0.0
        self._tell(self._said.metrics)

    def restoring(self, done: int, whole: int) -> None:
        """So many bytes of the checkpoint are read, of all that are to be: while they come, nobody stands still."""
        words = self.words
        words[shared_page.RESTORED], words[shared_page.TO_RESTORE], words[shared_page.MOVED_AT] = (
            done,
            whole,
            time.time(),
        )

    def restored(self, step: int, position: Position, seconds: float, *, verified: bool) -> None:
        """Training goes on from `step`. `verified`: storage alone had all that all ranks restored, whole."""
        words = self.words
        words[shared_page.VERIFIED] = float(verified)
        words[shared_page.STEP] = words[shared_page.FROM_STEP] = float(step)
        words[shared_page.SAMPLES], words[shared_page.RESTORING] = float(position.samples), seconds
        self._noted_step, self._noted_samples = step, position.samples
        self._note(None, position, {})

    def stepped(
        self, step: int, position: Position, loss: torch.Tensor | float | None, metrics: Mapping[str, float]
    ) -> None:
        """An optimizer step is done."""
        words, now, wall = self.words, time.monotonic(), time.time()
        if self._last is None:  # what led up to the first step is start-up, and counted as that
            words[shared_page.FIRST_STEP_AT] = wall
        else:
            words[shared_page.STEPPING] += now - self._last
        self._last = now
        words[shared_page.SAMPLES] = float(position.samples)
        words[shared_page.STEP], words[shared_page.MOVED_AT] = float(step), wall
        if now - self._noted_at >= _NOTE_SECONDS:
            self._note(loss, position, metrics)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """The loop stands still for a save: that time is not a step's."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.words[shared_page.SAVING] += self._stood_still(began)

    def works(self) -> None:
        """The rank is at something that is no step of its training, and does not hang."""
        self.words[shared_page.MOVED_AT] = time.time()

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """What is done within is no part of any step."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._noted_at += self._stood_still(began)

    def _stood_still(self, began: float) -> float:
        """Seconds since then, which are no step's; the rank does not hang."""
        spent = time.monotonic() - began
        if self._last is not None:
            self._last += spent
        self.works()
        return spent

    def parked(self) -> None:
        """Saved, and waiting to be ended."""
        self.words[shared_page.PARKED] = 1.0

    def finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """The script says that training is complete."""
        self.words[shared_page.TOTAL_STEPS], self.words[shared_page.MEMORY] = float(step), float(_memory())
        self._tell(metrics)
        self.words[shared_page.FINISHED] = 1.0

    def _note(
        self, loss: torch.Tensor | float | None, position: Position, metrics: Mapping[str, float]
    ) -> None:
        words, now = self.words, time.monotonic()
        seconds, step = max(now - self._noted_at, 1e-9), int(words[shared_page.STEP])
        steps, samples = step - self._noted_step, position.samples - self._noted_samples
        number = number_of(loss)
        words[shared_page.EPOCH], words[shared_page.LOSS_TOLD] = (
            float(position.epoch),
            float(number is not None),
        )
        words[shared_page.LOSS] = number or 0.0
        words[shared_page.STEP_SECONDS] = seconds / steps if steps else 0.0
        words[shared_page.FORWARD_SECONDS] = self._clock.mean() if self._clock else 0.0
        words[shared_page.SAMPLES_PER_SECOND], words[shared_page.MEMORY] = samples / seconds, float(_memory())
        self._tell(metrics)
        self._noted_at, self._noted_step, self._noted_samples = now, step, position.samples

    def _tell(self, metrics: Mapping[str, float]) -> None:
        """Write the script's own numbers, where they are new: that costs as much as a hundred steps of the page."""
        said = RankNote(finite(metrics), self._phases)
        if self._note_path is None or said == self._said:
            return
        temporary = Path(f"{self._note_path}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(encode(said)))
            temporary.replace(self._note_path)
        except OSError as error:  # a disk that is full, for example, is no reason to lose what was trained
            log.warning("numbers of this rank cannot be told: %s", error)
        else:
            self._said = said


def finite(numbers: Mapping[str, float]) -> dict[str, float]:
    """Those that are finite: JSON has no others, and one of them must not cost all that stands beside it."""
    plain = {name: float(value) for name, value in numbers.items()}
    return {name: value for name, value in plain.items() if math.isfinite(value)}


def number_of(loss: torch.Tensor | float | None) -> float | None:
    """A loss as a number; None where there is none, or it is not finite. On a GPU this waits for it."""
    if loss is None:
        return None
    number = float(loss) if isinstance(loss, int | float) else float(loss.detach())
    return number if math.isfinite(number) else None


def _memory() -> int:
    """The most memory this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
