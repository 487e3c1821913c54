"""Small builders, so that a test says only what it is about."""

from __future__ import annotations

from typing import Any

from airflow_elastic.core.machine import create, evolve
from airflow_elastic.core.state import RunState
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
from airflow_elastic.spec.status import JobStatus, Progress, RankError, Stretch, WorkerPhase, WorkerStatus

#: What has happened where the first attempt is at work.
LIVE = (ev.AttemptSubmitted(1.0, 1, "job-a1"),)


def spec(**changes: Any) -> RunSpec:
    """A run of 2 workers, 1 to 4, with a budget of 3."""
    defaults: dict[str, Any] = {
        "command": ("train.py",),
        "workers": Workers(2, min=1, max=4),
        "restart": RestartPolicy(backoff_limit=3),
    }
    return RunSpec(**{**defaults, **changes})


def created(run: RunSpec | None = None, *, in_place: bool = True, owner: str | None = None) -> ev.RunCreated:
    return ev.RunCreated(0.0, run or spec(), scales_in_place=in_place, owner=owner)


def story(
    *events: ev.Event, run: RunSpec | None = None, in_place: bool = True, owner: str | None = None
) -> RunState:
    """The state after a run was created and these events have happened."""
    state = create(created(run, in_place=in_place, owner=owner))
    for event in events:
        state = evolve(state, event)
    return state


def worker(phase: str = "failed", *, name: str = "node-1", **changes: Any) -> WorkerStatus:
    return WorkerStatus(name, WorkerPhase(phase), **changes)


def rank(exit_code: int | None = None, **changes: Any) -> RankError:
    return RankError(**{"rank": 1, "exit_code": exit_code, "at": 10.0, **changes})


def job(*workers: WorkerStatus) -> JobStatus:
    return JobStatus(workers)


def lost() -> JobStatus:
    return job(worker("running", name="node-0"), worker("lost"))


def failed(exit_code: int = 1, error: str | None = "ValueError: bad") -> JobStatus:
    return job(worker("failed", errors=(rank(exit_code, error=error),)))


def done() -> JobStatus:
    return job(worker("succeeded", name="node-0"), worker("succeeded"))


def at_step(step: int, *, attempt: int = 1, from_step: int = 0, **changes: Any) -> Progress:
    stretch = Stretch(
        generation=1,
        world_size=2,
        workers=2,
        started_at=1.0,
        first_step_at=2.0,
        last_step_at=3.0,
        from_step=from_step,
        to_step=step,
        stepping_seconds=1.0,
    )
    defaults: dict[str, Any] = {
        "attempt": attempt,
        "at": 3.0,
        "step": step,
        "moved_at": 3.0,
        "world_size": 2,
        "stretches": (stretch,),
        "attached": True,
    }
    return Progress(**{**defaults, **changes})
