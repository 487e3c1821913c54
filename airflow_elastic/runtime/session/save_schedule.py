"""When a rank saves, and when it stops: what falls due, what somebody asks for, what waits for the end of an epoch."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

from airflow_elastic.runtime.checkpoint.save.save import BREAKPOINT, in_between
from airflow_elastic.runtime.collectives.agreement import Agreement
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.session.heartbeat import Heartbeat
from airflow_elastic.runtime.session.save_interval import SaveInterval
from airflow_elastic.spec.checkpoint import CheckpointPolicy

#: Why a state is saved with which a training of several is complete.
PHASE = "phase"


class SaveSchedule:
    """The saves of one rank, at the same steps as those of all others.

    Args:
        ranks: this rank among the others.
        voice: of this rank.
        policy: of the run.
        write: saves the state as it is now, for that reason; returns whether it was saved.
        settle: has all ranks go on from the same weights, where they train by themselves.

    Attributes:
        saved: the newest step that is saved; -1: none is.
        waits: whether the last step of an epoch is done, and not yet what belongs to its end: what falls due waits for
            that.
    """

    def __init__(
        self,
        ranks: Collectives,
        voice: Heartbeat,
        policy: CheckpointPolicy,
        write: Callable[[str], bool],
        settle: Callable[[], None],
    ) -> None:
        self._voice, self._policy, self._write, self._settle = voice, policy, write, settle
        self._agreement = Agreement(ranks)
        self._pace: SaveInterval | None = None
        self._at, self._done = time.monotonic(), 0
        self._put_off: dict[str, None] = {}  # reasons, in their order
        self.saved, self.waits = -1, False

    def goes_on(self, step: int, pace: SaveInterval | None, *, saved: bool) -> None:
        """From this step, which is saved already or is the beginning."""
        if saved:
            self.saved = step
            self._agreement.again(step)
        self._pace, self._at = pace or self._pace, time.monotonic()

    # -- with each step ------------------------------------------------------------------------------------------

    def act(self, step: int) -> None:
        """Do what anybody was asked for. All ranks do so with the same step."""
        words = self._agreement.answer()
        if words is None:
            return
        park, saves, late = words
        if park:
            self.park(step)
        if saves > self._done:
            self.now(step, "requested")
            self._done = int(saves)
        elif late:
            self.now(step, "seconds")
        self._agreement.again(step)

    def park(self, step: int) -> None:
        """Save, and wait to be ended: does not return."""
        self.now(step, BREAKPOINT)
        self._park()

    def due(self, step: int) -> None:
        """Save what the policy says of this step, or said of one whose end has not come."""
        every = self._policy.every_steps
        if (self._put_off and not self.waits) or (every is not None and step % every == 0):
            self.now(step, "steps")
        between = in_between(self._policy, step)
        if between is not None and self.waits:
            self._put_off[between] = None
        elif between is not None:
            self._settle()
            self._write(between)

    def ask(self, step: int, *, averaging: bool) -> None:
        """Begin to find out, together, whether anybody was asked to save or to stop, where it is time for that."""
        if not averaging and not self._agreement.due(step):
            return
        due = self._seconds is not None and time.monotonic() - self._at >= self._seconds
        words = (self._voice.park_ordered, self._voice.saves_ordered, float(due))
        if self._agreement.ask(*words, soon=not averaging):
            self.act(step)

    @property
    def _seconds(self) -> float | None:
        return self._pace.seconds if self._pace is not None else self._policy.seconds

    # -- saving --------------------------------------------------------------------------------------------------

    def now(self, step: int, reason: str) -> bool:
        """Save, unless this step is saved already, or waits for the end of its epoch; returns whether it was saved."""
        if self.saved == step:
            return False
        if self.waits and reason != BREAKPOINT:  # who has to end has no time for that
            self._put_off[reason] = None
            return False
        self._settle()
        began, self._put_off = time.monotonic(), {}
        saved = self._write(reason)
        if saved:
            self.saved = step
            if self._pace is not None:
                self._pace.measured(time.monotonic() - began)
        self._at = time.monotonic()
        return saved

    def end_of_epoch(self, step: int) -> None:
        """What belongs to the end of an epoch is done: so is what waited for that."""
        self.waits, reasons = False, list(self._put_off)
        self._put_off = {}
        between = [reason for reason in reasons if reason == in_between(self._policy, step)]
        written = [reason for reason in reasons if reason not in between]
        if written:
            self.now(step, min(written, key=_WEIGHT.index))
        for reason in between:
            self._settle()
            self._write(reason)

    def forget(self) -> None:
        """What has waited is not wanted any more."""
        self.waits, self._put_off = False, {}

    def answer(self) -> None:
        """Hear what was asked for, and leave it: there is nothing more to do."""
        self._agreement.answer()

    def _park(self) -> None:
        """Saved, and nothing more to do: the agent ends this process and starts the next one where it is needed."""
        self._voice.parked()
        if threading.current_thread() is threading.main_thread():
            # A framework may have put it off to the end of a step that does not come.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            signal.pause()


#: Of several reasons to save the first of these is told: such a save is not left out as readily as the others.
_WEIGHT = ("requested", "script", "steps", "seconds")
