"""Everything that can happen to a run, as the journal keeps it.

Each event is one immutable object of the journal. `at` is the epoch second at which the controller saw it; the core has
no clock of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from airflow_elastic.spec.brain.proposal import Proposal
from airflow_elastic.spec.checkpoints.events import (
    CheckpointCommitted,
    CheckpointQuarantined,
    CopyRefused,
    NewerSetAside,
    PruneRefused,
    ResumeRefused,
    ResumeRequested,
    SaveFailed,
    SaveLeftOut,
    SaveOrdered,
    SaveRequested,
)
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import Problem, SpecError
from airflow_elastic.spec.models.start import Origin
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.scaling.events import ScaleDecided
from airflow_elastic.spec.stacks import Stack
from airflow_elastic.spec.status import JobStatus, Progress, WorkerStatus
from airflow_elastic.spec.training.recovery import Recovery

__all__ = [
    "AUTOSCALER",
    "SCHEDULE",
    "AttemptGone",
    "AttemptSubmitted",
    "BackoffElapsed",
    "CheckpointCommitted",
    "CheckpointQuarantined",
    "CopyRefused",
    "DeadlinePassed",
    "Event",
    "MachineExcluded",
    "NewerSetAside",
    "OwnerChanged",
    "PhaseCompleted",
    "PruneRefused",
    "RanksFailed",
    "Recovered",
    "Regrouped",
    "RejoinRefused",
    "ResumeRefused",
    "ResumeRequested",
    "RunCreated",
    "RunEnded",
    "RunMoved",
    "RunReopened",
    "SaveFailed",
    "SaveLeftOut",
    "SaveOrdered",
    "SaveRequested",
    "ScaleDecided",
    "ScaleFailed",
    "ScaleRequested",
    "Scaled",
    "Stalled",
    "StandbyAsked",
    "StopRequested",
    "SubmitHeldByEngine",
    "SubmitRefusedByEngine",
    "WorkersEnded",
    "event_from_dict",
    "event_to_dict",
]

#: `by` of a scale request that nobody in particular makes. Such a request is known by its name, and counts once.
SCHEDULE, AUTOSCALER = "schedule", "an autoscaler"


@dataclass(frozen=True, slots=True)
class RunCreated:
    """The run exists.

    `scales_in_place`: whether engine and launcher can add and remove workers of a live attempt. `adopts`: the runs
    whose checkpoints were copied to begin with. `task`: the owner's task instance, as `dag/run/task/map index`; None
    for a shell. `origin`: the weights that it begins with; None: from scratch. `proposals`: what past runs propose.
    With `brain: cluster` they are in `spec` already, where it permits them.
    """

    at: float
    spec: RunSpec
    scales_in_place: bool
    owner: str | None = None
    adopts: tuple[str, ...] | None = None
    task: str | None = None
    origin: Origin | None = None
    proposals: tuple[Proposal, ...] = ()


@dataclass(frozen=True, slots=True)
class RunReopened:
    """A failed or stopped run goes on. Budgets and deadline start again from zero; checkpoints and attempts stay."""

    at: float
    owner: str | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True)
class OwnerChanged:
    """Another try of the task, or another shell, has taken over. Stop requests of former owners no longer count."""

    at: float
    owner: str
    task: str | None = None


@dataclass(frozen=True, slots=True)
class RunMoved:
    """The code of the run is in another folder now, such as that of a new bundle version, or its script is changed.

    `spec` has the new folder or script and is otherwise the same. The current attempt keeps the old one; the next one
    begins with the new one.
    """

    at: float
    spec: RunSpec


@dataclass(frozen=True, slots=True)
class AttemptSubmitted:
    """The engine has the job. This controller or an earlier one has created it.

    `replacements`: for an attempt in the job of another one, the new workers in place of lost ones, if they are known.
    """

    at: float
    attempt: int
    job: str
    replacements: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class SubmitRefusedByEngine:
    """The engine refuses the job.

    With `for_now`, a rule refuses it that people may change. A run whose jobs were accepted before waits for that.
    (While the engine is only out of reach, the controller keeps trying.)
    """

    at: float
    attempt: int
    reason: str
    for_now: bool = False


@dataclass(frozen=True, slots=True)
class SubmitHeldByEngine:
    """The engine does not take the job yet, e.g. because a quota is used up. The controller tries again."""

    at: float
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class PhaseCompleted:
    """One of several trainings is over, and a checkpoint has its end. `step`: the run's step at that end."""

    at: float
    attempt: int
    phase: int
    name: str
    step: int
    steps: int
    results: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RanksFailed:
    """A worker's ranks have failed after `step`, and its agent waits. Other workers may report further causes."""

    at: float
    attempt: int
    worker: WorkerStatus
    step: int = 0


@dataclass(frozen=True, slots=True)
class RejoinRefused:
    """The engine cannot start the attempt in the job of the previous one; the next attempt gets a job of its own."""

    at: float
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkersEnded:
    """The attempt is over: a worker failed or was lost, or all succeeded. With the evidence and the last step."""

    at: float
    attempt: int
    job: JobStatus
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Stalled:
    """No rank has made a step for too long. `step` is None if ranks have made none since they were started.

    `limit_seconds` is the limit that was exceeded. Before a first step it may follow from `longest_start`, the seconds
    of the longest earlier start. `stacks`: of the ranks that answered. `of_fork`: forks may be why.
    """

    at: float
    attempt: int
    idle_seconds: float
    step: int | None = None
    progress: Progress | None = None
    limit_seconds: float | None = None
    longest_start: float | None = None
    stacks: tuple[Stack, ...] = ()
    of_fork: bool = False


@dataclass(frozen=True, slots=True)
class AttemptGone:
    """The engine says that nothing of the attempt runs any more, or can start again."""

    at: float
    attempt: int
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """The live attempt has done its first step: what took how long. `stayed`: of `ranks`, in their former processes."""

    at: float
    attempt: int
    recovery: Recovery
    stayed: int | None = None
    ranks: int | None = None


@dataclass(frozen=True, slots=True)
class BackoffElapsed:
    """The pause before the next attempt is over."""

    at: float
    attempt: int


@dataclass(frozen=True, slots=True)
class ScaleRequested:
    """Somebody, or the schedule, wants another number of workers."""

    at: float
    request: str
    workers: int
    by: str


@dataclass(frozen=True, slots=True)
class Scaled:
    """The engine has changed the live attempt to this number of workers."""

    at: float
    attempt: int
    workers: int


@dataclass(frozen=True, slots=True)
class Regrouped:
    """The live attempt trains with these workers. The others cannot start yet, and join later."""

    at: float
    attempt: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StandbyAsked:
    """The engine was asked for these standby workers of the live attempt.

    `reason`: which ones were lost before; None: the places were empty, because the former ones train now.
    """

    at: float
    attempt: int
    workers: tuple[int, ...]
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ScaleFailed:
    """The engine could not change the live attempt; the scale step will be done by a new attempt."""

    at: float
    attempt: int
    workers: int
    reason: str


@dataclass(frozen=True, slots=True)
class MachineExcluded:
    """Somebody wants no worker of later attempts on this machine; with `excluded` False, it may be used again."""

    at: float
    request: str
    machine: str
    by: str
    excluded: bool = True


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody wants the run to end. With `owner` set, only as long as that is still the run's owner."""

    at: float
    request: str
    by: str
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The run has used up its active deadline."""

    at: float


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The last event: outcome is `succeeded`, `failed` or `stopped`."""

    at: float
    outcome: str
    reason: str


Event = (
    RunCreated
    | RunReopened
    | OwnerChanged
    | RunMoved
    | AttemptSubmitted
    | SubmitRefusedByEngine
    | SubmitHeldByEngine
    | CheckpointCommitted
    | PhaseCompleted
    | SaveFailed
    | SaveLeftOut
    | CheckpointQuarantined
    | PruneRefused
    | CopyRefused
    | RanksFailed
    | Recovered
    | RejoinRefused
    | WorkersEnded
    | Stalled
    | StandbyAsked
    | AttemptGone
    | BackoffElapsed
    | ScaleRequested
    | ScaleDecided
    | Scaled
    | Regrouped
    | ScaleFailed
    | SaveRequested
    | SaveOrdered
    | ResumeRequested
    | NewerSetAside
    | ResumeRefused
    | MachineExcluded
    | StopRequested
    | DeadlinePassed
    | RunEnded
)

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}


def event_to_dict(event: Event) -> dict[str, Any]:
    """Plain JSON values, with the name of the event's class under `event`."""
    return {"event": type(event).__name__, **encode(event)}


def event_from_dict(data: dict[str, Any]) -> Event:
    """The event that `event_to_dict` wrote. Raises SpecError on anything else."""
    kind = _KINDS.get(str(data.get("event")))
    if kind is None:
        raise SpecError(Problem("event", data.get("event"), f"one of {', '.join(_KINDS)}"))
    event: Event = decode(kind, {key: value for key, value in data.items() if key != "event"})
    return event
