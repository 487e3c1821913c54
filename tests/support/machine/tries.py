"""One task instance of a real Airflow, and the run that it drives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.host import processes as linux
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.runs import Run
from airflow_elastic.core.state import RunState
from airflow_elastic.engines.local.host import RUN_MARK
from airflow_elastic.testing.airflow_rest import AirflowBrokenError, poll
from airflow_elastic.testing.standalone import Standalone
from tests.support.machine.patience import PATIENCE_SECONDS

TASK = "train"
#: Seconds of a run that a test ends itself.
FOREVER = 3600
TICKS = re.compile(r"tick (\d+) of process (\d+)")


@dataclass
class Try:
    """One task instance under test."""

    airflow: Standalone
    dag: str
    run_id: str
    map_index: int = -1

    def state(self) -> str | None:
        return self.airflow.task_state(self.dag, self.run_id, TASK, self.map_index)

    def wait(self, *states: str) -> str:
        return self.airflow.wait_task(
            self.dag, self.run_id, TASK, states, map_index=self.map_index, timeout=PATIENCE_SECONDS
        )

    def number(self) -> int:
        return int(self.airflow.task(self.dag, self.run_id, TASK, self.map_index)["try_number"])

    def log(self, number: int | None = None) -> str:
        return self.airflow.task_log(self.dag, self.run_id, TASK, try_number=number, map_index=self.map_index)

    def xcom(self, key: str) -> Any:
        return self.airflow.xcom(self.dag, self.run_id, TASK, key, map_index=self.map_index)

    def clear(self) -> None:
        self.airflow.clear_task(self.dag, self.run_id, TASK, self.map_index)

    def mark(self, state: Any) -> None:
        self.airflow.set_task_state(self.dag, self.run_id, TASK, state, self.map_index)

    @property
    def uri(self) -> str:
        uri: str = poll("the task to push its run URI", self._uri, timeout=PATIENCE_SECONDS, hint=self._known)
        return uri

    def _uri(self) -> str | None:
        try:
            found: str = self.xcom("run_uri")
        except AirflowBrokenError:
            raise
        except Exception:
            return None
        return found

    def run(self) -> RunState:
        return Run(open_store(self.uri)).state

    def wait_ticks(self, least: int = 1) -> int:
        """Wait until the script has printed so many ticks; returns the process that prints them."""

        def probe() -> int | None:
            found = self.ticks()
            return found[-1][1] if found and found[-1][0] >= least else None

        return poll(f"tick {least} of {self.dag}", probe, timeout=PATIENCE_SECONDS, hint=self._known)

    def ticks(self) -> list[tuple[int, int]]:
        """Number and process of every tick that the script has written, oldest first."""
        logs = sorted(Path(self.uri).glob("logs/*/*-rank-0.log"))
        return [(int(n), int(pid)) for log in logs for n, pid in TICKS.findall(log.read_text())]

    def processes(self) -> list[linux.Process]:
        """Everything of the run that lives: node host, agents, ranks, and what they have started."""
        return linux.marked(RUN_MARK, f"{self.uri}/local")

    def wait_gone(self) -> None:
        poll(
            "nothing of the run to be left",
            lambda: not self.processes() or None,
            timeout=PATIENCE_SECONDS,
            hint=lambda: f"{self.processes()} live; {self._known()}",
        )

    def wait_ended(self) -> RunState:
        def probe() -> RunState | None:
            state = self.run()
            return state if state.ended else None

        return poll("the run to end", probe, timeout=PATIENCE_SECONDS, hint=self._known)

    def _known(self) -> str:
        return f"{self.log()}\n{self.airflow.condition()}"
