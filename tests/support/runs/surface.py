"""The operator, its hook and its task instance without Airflow's services."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.control.runs import Run, start_run
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.operators import ElasticTrainOperator
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.testing.fake_engine import FakeEngine
from airflow_elastic.triggers.task import task_key

SPEC = RunSpec(("train.py",), engine="fake", launcher="python")


class Log:
    """A task's log that keeps what it was told, and what of it is grave."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.grave: list[tuple[str, str]] = []

    def info(self, event: str, *args: object) -> None:
        self.lines.append(event % args)

    def warning(self, event: str, *args: object) -> None:
        self.info(event, *args)
        self.grave.append(("WARNING", self.lines[-1]))

    def error(self, event: str, *args: object) -> None:
        self.info(event, *args)
        self.grave.append(("ERROR", self.lines[-1]))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class FakeHook(ElasticHook):
    """Runs in folders, workers in memory."""

    def engine(self, name: str, uri: str = "") -> Any:
        return FakeEngine()


@dataclass
class FakeTask:
    """A task instance, as far as the operator looks at it."""

    id: str = "try-1"
    dag_id: str = "a dag"
    task_id: str = "train"
    run_id: str = "manual__2026-01-01T00:00:00+00:00"
    map_index: int = -1
    try_number: int = 1
    max_tries: int = 0
    xcoms: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def xcom_pull(self, key: str, **_: Any) -> Any:
        return self.xcoms.get(key)


def operator(**changes: Any) -> ElasticTrainOperator:
    return ElasticTrainOperator(
        **{"task_id": "train", "command": ["/train.py"], "launcher": "python", "poll_interval": 0.05}
        | changes
    )


#: As the journal names the task of the tries under test.
OWN_TASK = task_key(FakeTask())


def begun(
    hook: FakeHook,
    uri: Path | str,
    owner: str = "try-1",
    spec: RunSpec = SPEC,
    task: str | None = OWN_TASK,
) -> Run:
    return start_run(hook.open_store(str(uri)), spec, owner=owner, task=task, engine=FakeEngine())


def ended(run: Run, outcome: str, reason: str = "because") -> Run:
    journal = Journal(run.store)
    assert journal.append(len(journal.read()), ev.RunEnded(time.time(), outcome, reason))
    return run
