"""A thread of each agent that writes progress and its history to storage, and reads orders from there."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.checkpoint_parts import Superseded
from airflow_elastic.adapters.records.reports import read_orders, write_progress, write_stacks
from airflow_elastic.runtime.agent.reporting.controller_lease import ControllerLease
from airflow_elastic.runtime.agent.reporting.history import HistoryKeeper
from airflow_elastic.runtime.agent.reporting.stacks import ask_ranks
from airflow_elastic.runtime.agent.reporting.usage import UsageMeter
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.runtime.agent.worker import Worker
    from airflow_elastic.spec.status import Progress

    Telling = Callable[[bool], Progress | None]

log = logging.getLogger(__name__)

#: Pause between two reports: for a run in a folder, and for one on a service, where each costs requests.
NEAR_SECONDS, FAR_SECONDS = 1.0, 3.0

#: Of failures in a row the 1st, 2nd, 4th, 8th ... is logged, and from then on every 64th.
_LOGGED_EVERY = 64


class Reporter:
    """Reports while the worker runs, and once more at its end."""

    def __init__(self, node: Worker, tell: Telling) -> None:
        """Create the thread.

        Args:
            node: this worker.
            tell: returns the progress of all workers if this one reports it, else None. Its argument is True for the
                last report.
        """
        self._node, self._tell = node, tell
        self._near = node.store.local_path(layout.STATUS) is not None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="reporter", daemon=True)
        self._seen: set[str] = set()  # orders to save
        self._failures = 0  # reports in a row that failed
        self._orders, self._generation = 0, 0  # orders to save for the ranks of this generation
        self._stacks: str | None = None  # the newest request for stacks
        self._lock = threading.Lock()  # one report at a time: by the thread, or by a call of `now`
        self._history, self._usage = HistoryKeeper(node), UsageMeter(node)
        self._lease = ControllerLease(node.store, node.record.spec.health.unattended_seconds)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write the last report and end."""
        self._over.set()
        self._thread.join(timeout=30.0)
        self._history.stop()

    def _work(self) -> None:
        while not self._over.wait(NEAR_SECONDS if self._near else FAR_SECONDS):
            self._once()
        self._once(last=True)

    def now(self) -> None:
        """Report at once: something has happened."""
        self._once()

    def _once(self, *, last: bool = False) -> None:
        with self._lock:
            self._report(last=last)

    def _report(self, *, last: bool) -> None:
        try:
            self._node.shortage.look()
            self._usage.look()
            progress = self._tell(last)
            if progress is not None:
                write_progress(self._node.store, progress)
                self._history.keep(progress)
            self._pass_orders()
            self._see_controller()
        except Exception as error:  # training goes on; the controller sees that reports are missing
            self._failed(error)
        else:
            if self._failures > 1:
                log.info("reporting works again, after %d failures", self._failures)
            self._failures = 0

    def _failed(self, error: Exception) -> None:
        """Log the failure, unless many in a row have been logged: a full disk needs its room, and a reader the rest."""
        self._failures += 1
        if self._failures & (self._failures - 1) and self._failures % _LOGGED_EVERY:
            return
        again = f" {self._failures} times in a row" if self._failures > 1 else ""
        message = f"reporting failed{again}, trying again: {error}"
        if isinstance(error, (StoreError, OSError)):
            log.warning("%s", message)
        else:
            log.error("%s", message, exc_info=error)

    def _pass_orders(self) -> None:
        node, former = self._node, self._generation
        if not node.generation:
            return
        orders = read_orders(node.store, node.attempt)
        order = orders.save
        self._tell_stacks(orders.stacks)
        if node.generation != former:
            self._generation = node.generation
            # A save at the end of the former generation answers all its orders, and the new ranks go on from there.
            if node.saved_and_left(former):
                self._orders = 0
            # A worker that joins a running attempt does not know whether the order is new. The others do.
            if order is not None and former == 0 and node.follows_its_own:
                self._seen.add(order)
        if order is not None and order not in self._seen:
            self._seen.add(order)
            self._orders += 1
        if self._orders:
            node.order_saves(self._orders)

    def _tell_stacks(self, request: str | None) -> None:
        """Report the stacks of this worker's ranks, once for each request."""
        if request is None or request == self._stacks:
            return
        self._stacks, node = request, self._node
        log.warning("the run hangs: its ranks print their stacks into their logs")
        write_stacks(node.store, node.attempt, request, f"node-{node.index}", ask_ranks(node))

    def _see_controller(self) -> None:
        node = self._node
        if node.stop_at is not None:
            return
        try:
            seconds = self._lease.missed(node.run)
        except Superseded as error:
            node.unattended = str(error)
        else:
            if seconds is None:
                return
            node.unattended = f"no controller has written the run's status for {seconds:.0f} s"
        log.warning("%s: the worker saves and ends", node.unattended)
        node.stop()
