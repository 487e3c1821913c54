"""One DAG run of tests/airflow/dags/waits_dag.py on a real Airflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_elastic.testing.airflow_rest import poll
from airflow_elastic.testing.standalone import Standalone
from tests.airflow.dags.waits_dag import KINDS
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.runs.places import Place

#: These do not wait.
AT_ONCE = ("prune", "rollback")


def waiting(name: str) -> str:
    """The state of a task that has done what it can for now."""
    return {"promote": "awaiting_input"}.get(name, "success" if name in AT_ONCE else "deferred")


@dataclass
class Waits:
    """The task instances of one DAG run."""

    airflow: Standalone
    dag: str
    run_id: str

    def tasks(self) -> dict[tuple[str, int], dict[str, Any]]:
        """All, by their names and map indices."""
        path = f"dags/{self.dag}/dagRuns/{self.run_id}/taskInstances"
        found = self.airflow.rest("GET", path, params={"limit": 100})["task_instances"]
        return {(one["task_id"], one["map_index"]): one for one in found}

    def states(self) -> dict[tuple[str, int], str | None]:
        return {key: one["state"] for key, one in self.tasks().items()}

    def wait(
        self, wanted: Mapping[tuple[str, int], str], *, tries: int = 1, places: Iterable[Place] = ()
    ) -> None:
        """Wait until tasks are in these states, in this try or a later one. Meanwhile the runs of places report."""

        def probe() -> bool | None:
            for place in places:
                place.report()
            found = self.tasks()
            done = [
                found[key]["state"] == state and found[key]["try_number"] >= tries
                for key, state in wanted.items()
                if key in found
            ]
            return (len(done) == len(wanted) and all(done)) or None

        def hint() -> str:
            other = {key: state for key, state in self.states().items() if state != wanted.get(key)}
            return f"others: {other}; {self.airflow.condition()}"

        poll(f"states of {self.dag}", probe, timeout=PATIENCE_SECONDS, every=0.5, hint=hint)

    def xcom(self, name: str, index: int = -1) -> Any:
        return self.airflow.xcom(self.dag, self.run_id, name, map_index=index)

    def log(self, name: str, index: int = -1) -> str:
        return self.airflow.task_log(self.dag, self.run_id, name, map_index=index)

    def clear(self) -> None:
        """All at once."""
        body = {"dry_run": False, "only_failed": False, "dag_run_id": self.run_id, "task_ids": [*KINDS]}
        self.airflow.rest("POST", f"dags/{self.dag}/clearTaskInstances", json=body)

    def answer(self, word: str, index: int = -1) -> None:
        """Of a person who is asked about the promotion."""
        number = self.tasks()["promote", index]["try_number"]
        wait_parked(self.airflow, self.run_id, "promote", number, index)
        path = f"dags/{self.dag}/dagRuns/{self.run_id}/taskInstances/promote/{index}/hitlDetails"
        self.airflow.rest("PATCH", path, json={"chosen_options": [word], "params_input": {}})


def wait_parked(airflow: Standalone, run: str, task: str, number: int = 1, index: int = -1) -> None:
    """Wait until the scheduler knows that the process of a task that waits for a person has ended.

    An answer before that fails the try, as the scheduler then takes the task for one that was changed from outside.
    People are not so fast. A scheduler that was started again has a log of its own.
    """
    words = (
        *("Received executor event with state success", f"task_id='{task}', run_id='{run}'"),
        f"try_number={number}, map_index={index})",
    )

    def probe() -> bool | None:
        logs = (log.read_text(errors="replace") for log in airflow.home.glob("*.log"))
        return any(all(word in line for word in words) for log in logs for line in log.splitlines()) or None

    poll("the scheduler to know of the wait", probe, timeout=PATIENCE_SECONDS, hint=airflow.condition)


def begin(airflow: Standalone, dag: str, folder: Path, **conf: Any) -> Waits:
    airflow.wait_for_dag(dag)
    return Waits(airflow, dag, airflow.trigger(dag, {"place": str(folder), **conf}))
