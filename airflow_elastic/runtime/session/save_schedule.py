"""When a rank saves and when it stops: by policy, on request, or after a wait for the end of an epoch."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

from airflow_elastic.runtime.checkpoint.save.save import BREAKPOINT, in_between
from airflow_elastic.runtime.collectives.agreement import Agreement
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.session.reporting.heartbeat import Heartbeat
from airflow_elastic.runtime.session.save_interval import SaveInterval
from airflow_elastic.runtime.staying.agent_link import LeaveGeneration
from airflow_elastic.spec.checkpoint import CheckpointPolicy

#: The reason of the save at the end of a phase.
PHASE = "phase"

#: The reason of a save because a metric is better than ever before (`early_stop`).
BEST = "best"


class SaveSchedule:
    """The saves of one rank. All ranks save at the same steps.

    Args:
        ranks: this rank among the others.
        heartbeat: reports for this rank, and receives orders.
        policy: the run's checkpoint policy.
        write: saves the state now, for a reason. Returns whether it was saved.
        settle: gives all ranks the same weights, if they train by themselves.

    Attributes:
        saved: the newest saved step; -1: none.
        stays: whether this process may go on in the next generation, in `run.train`.
        waits: whether the last step of an epoch is done, but the loop body is not. Saves that are due wait for its end.
    """

    def __init__(
        self,
        ranks: Collectives,
        heartbeat: Heartbeat,
        policy: CheckpointPolicy,
        write: Callable[[str], bool],
        settle: Callable[[], None],
    ) -> None:
        self._heartbeat, self._policy, self._write, self._settle = heartbeat, policy, write, settle
        self._agreement = Agreement(ranks)
        self._pace: SaveInterval | None = None
        self._at, self._done = time.monotonic(), 0
        self._put_off: dict[str, None] = {}  # reasons, in their order
        self.saved, self.waits = -1, False
        self.stays: Callable[[], bool] = lambda: False

    def goes_on(self, step: int, pace: SaveInterval | None, *, saved: bool) -> None:
        """Training begins at this step, which is saved already, or is the beginning of the run."""
        if saved:
            self.saved = step
            self._agreement.again(step)
        self._pace, self._at = pace or self._pace, time.monotonic()

    # -- with each step ------------------------------------------------------------------------------------------

    def act(self, step: int) -> None:
        """Save or stop if any rank was asked to. All ranks do so at the same step."""
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
        """Save, and wait to be ended. Does not return."""
        self.now(step, BREAKPOINT)
        self._park()

    def due(self, step: int) -> None:
        """Save if the policy says so for this step, or said so for an earlier one whose save was put off."""
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
        """Begin a collective that finds out whether any rank was asked to save or stop, if one is due at this step."""
        if not averaging and not self._agreement.due(step):
            return
        due = self._seconds is not None and time.monotonic() - self._at >= self._seconds
        words = (self._heartbeat.park_ordered, self._heartbeat.saves_ordered, float(due))
        if self._agreement.ask(*words, soon=not averaging):
            self.act(step)

    @property
    def _seconds(self) -> float | None:
        return self._pace.seconds if self._pace is not None else self._policy.seconds

    # -- saving --------------------------------------------------------------------------------------------------

    def now(self, step: int, reason: str, *, waits: bool = True) -> bool:
        """Save, unless this step is saved already, or waits for the end of its epoch. Returns whether it was saved.

        Without `waits`, what belongs to the end of the epoch is done already.
        """
        if self.saved == step:
            return False
        if self.waits and waits and reason != BREAKPOINT:  # a rank that must end has no time to wait
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
        """The loop body of an epoch is done: do the saves that had to wait."""
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
        """Drop the saves that have waited."""
        self.waits, self._put_off = False, {}

    def answer(self) -> None:
        """Finish the last collective, and ignore its result: training is complete."""
        self._agreement.answer()

    def _park(self) -> None:
        """Report the save, and wait: the agent ends this process, and starts a new one if it is needed.

        Raises:
            LeaveGeneration: this process goes on in the next generation.
        """
        self._heartbeat.parked()
        if self.stays():
            raise LeaveGeneration
        if threading.current_thread() is threading.main_thread():
            # A framework's handler may wait for the end of a step, and no step follows.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            signal.pause()


#: If a save has several reasons, the first of these is recorded: such a save is skipped less readily than the others.
_WEIGHT = ("requested", "script", BEST, "steps", "seconds")
