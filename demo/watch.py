"""Following one DAG run to its end: task states from Airflow, the training's progress and events from its run URI."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.runs import Run
from airflow_elastic.core.event_sentences import sentence
from airflow_elastic.core.machine import create, evolve
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.errors import RunMissing
from airflow_elastic.testing.airflow_rest import TERMINAL_RUN

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.core.state import RunState
    from airflow_elastic.testing.standalone import Standalone
    from demo.faults import Faults
    from demo.screen import Screen

TASKS = ("prepare", "train", "evaluate", "promote")

#: How often the run is looked at, and Airflow asked.
RUN_SECONDS, AIRFLOW_SECONDS = 0.2, 1.0


class Watch:
    """One DAG run of the quickstart.

    Attributes:
        run: the training; None as long as it does not exist.
        tasks: the state of each task, as Airflow said it last.
    """

    def __init__(self, airflow: Standalone, dag_id: str, run_id: str, screen: Screen, faults: Faults) -> None:
        self._airflow, self._dag_id, self._run_id = airflow, dag_id, run_id
        self._screen, self._faults = screen, faults
        self._told: Iterator[None] | None = None
        self.run: Run | None = None
        self.tasks: dict[str, str | None] = dict.fromkeys(TASKS)

    def until_over(self, seconds: float) -> bool:
        """Follow it until Airflow says that it is over; False: that took too long."""
        deadline, ask_at = time.monotonic() + seconds, 0.0
        over = False
        while not over and time.monotonic() < deadline:
            if time.monotonic() >= ask_at:
                over = self._ask_airflow()
                ask_at = time.monotonic() + AIRFLOW_SECONDS
            if self.run is not None:
                self._look(self.run)
            time.sleep(RUN_SECONDS)
        return over

    def _ask_airflow(self) -> bool:
        path = f"dags/{self._dag_id}/dagRuns/{self._run_id}"
        found = self._airflow.rest("GET", f"{path}/taskInstances")["task_instances"]
        states = {task["task_id"]: task["state"] for task in found}
        self.tasks = {task: states.get(task) for task in TASKS}
        self._screen.tasks(self.tasks)
        if self.run is None and self.tasks["train"]:
            answer = self._airflow.request("GET", f"{path}/taskInstances/train/xcomEntries/run_uri")
            if answer.status_code == 200:
                store = open_store(answer.json()["value"])
                self.run, self._told = Run(store), self._tell(store)
        return self._airflow.run_state(self._dag_id, self._run_id) in TERMINAL_RUN

    def _look(self, run: Run) -> None:
        try:
            status: Any = run.status()
        except RunMissing:
            return
        if self._told is not None:
            next(self._told)
        self._screen.status(status)
        if status["outcome"] is None:
            self._faults.look(run, status)

    def _tell(self, store: Store) -> Iterator[None]:
        """Show the new events at each turn, without checkpoints: the progress shows the newest one."""
        journal, seq = Journal(store), 0
        state: RunState | None = None
        while True:
            for event in journal.read(seq):
                before, state = state, create(event) if state is None else evolve(state, event)
                seq += 1
                text = sentence(event, before, state)
                if text is not None and not isinstance(event, ev.CheckpointCommitted):
                    self._screen.say(text, at=event.at, style=_style(event, state))
            yield


def _style(event: ev.Event, state: RunState) -> str:
    if isinstance(event, ev.RunEnded):
        return "green" if state.outcome == "succeeded" else "bold red"
    failed = isinstance(event, ev.WorkersEnded) and state.attempt.failure is not None
    return "yellow" if failed else "cyan"
