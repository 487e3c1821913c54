"""The state of a run: all that its journal says, folded together. Frozen; `core.machine` makes new ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.status import Progress, Wait, Waiting, WorkerStatus


class Phase(StrEnum):
    """Where an attempt is. At most one attempt of a run is in a phase other than PAUSED and GONE."""

    PAUSED = "paused"  # planned, but not before the pause is over; nothing of it exists
    SUBMITTING = "submitting"  # the engine may or may not have it
    LIVE = "live"  # the engine has it
    ENDING = "ending"  # it is being removed; something of it may still live
    GONE = "gone"  # nothing of it lives, nor can come to life


class Cause(StrEnum):
    """Why an attempt ended. Only FAILURE uses up the run's budget."""

    SUCCEEDED = "succeeded"
    FAILURE = "failure"
    PREEMPTION = "preemption"
    UNATTENDED = "unattended"
    SCALE_STEP = "scale step"
    STOP = "stop"
    DEADLINE = "deadline"


class FailureKind(StrEnum):
    """The class of a failure, which decides whether and how the run goes on."""

    PREEMPTED = "preempted"
    OVER_LIMIT = "over its limit"
    OUT_OF_MEMORY = "out of memory"
    WORKER_LOST = "worker lost"
    KILLED = "killed"
    CRASHED = "crashed"
    RESTART_ASKED = "restart asked for"
    CANNOT_START = "cannot start"
    BAD_ARGUMENTS = "bad arguments"
    BAD_INPUT = "bad input"
    CODE_ERROR = "code error"
    STORAGE = "storage failed"
    UNATTENDED = "unattended"
    NO_PROGRESS = "no progress"
    REFUSED = "refused by the engine"
    UNKNOWN = "unknown"


#: Failures that come from the program and its input, and so come again: the crash-loop rule looks at these.
REPEATABLE = frozenset(
    {
        FailureKind.BAD_ARGUMENTS,
        FailureKind.BAD_INPUT,
        FailureKind.CODE_ERROR,
        FailureKind.CRASHED,
        FailureKind.OUT_OF_MEMORY,
        FailureKind.OVER_LIMIT,
        FailureKind.CANNOT_START,
        FailureKind.UNKNOWN,
    }
)


#: Failures that may come from the machine, and so follow it.
OF_MACHINES = frozenset(
    {
        FailureKind.WORKER_LOST,
        FailureKind.KILLED,
        FailureKind.CRASHED,
        FailureKind.CANNOT_START,
        FailureKind.UNKNOWN,
    }
)

#: A machine is avoided after so many of the newest failures of machines: never more than one machine at a time, so that
#: a run which meets trouble everywhere does not shut itself out.
BAD_AFTER, BAD_OF = 2, 3


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed: the class, and the evidence for it.

    Attributes:
        kind: the class.
        reason: one sentence for a person.
        exit_code: as a shell would give it: 128 + signal for a signal, 137 for a lost worker; None where unknown.
        worker: name of the first failing worker.
        node: the machine that may be to blame, where the engine has several.
        rank: global rank of the first failing rank.
        error: type and text of its exception.
        traceback: its traceback; where it left none, the last lines that it printed.
        all_there: whether each worker's agent has told of its own, as where the network between them has failed.
    """

    kind: FailureKind
    reason: str
    exit_code: int | None = None
    worker: str | None = None
    node: str | None = None
    rank: int | None = None
    error: str | None = None
    traceback: str | None = None
    all_there: bool = False

    @property
    def signature(self) -> tuple[str, int | None, str | None]:
        """Equal for two failures that are the same error."""
        return (self.kind, self.exit_code, self.error)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One job submission. Times are epoch seconds.

    Attributes:
        number: from 1; part of the job's name.
        workers: workers it has, or is to have.
        phase: where it is.
        planned_at: when it was decided upon.
        not_before: when its pause is over.
        from_step: step of the newest checkpoint when it was submitted.
        job: the engine's name of it.
        submitted_at: when the engine had it.
        ended_at: when it was seen to have ended, or was told to.
        gone_at: when nothing of it was left.
        cause: why it ended.
        failure: the evidence, where it failed or was preempted.
        progress: how far it came, as last reported.
        members: the workers that it trains with while others are held up; None where it is all of them.
        machines: those that its workers were on when it ended, where the engine has several.
        home: number of the attempt whose job it goes on in; None where it has one of its own.
        replaces: workers of that job that are lost, and whose places others take.
        failed: workers whose ranks have failed and whose agents stand by.
        failed_at: the newest step that these are known to have done.
        saved_at: step of the newest checkpoint that it has written.
        held: why the engine does not take it yet; None where nothing is known to be in the way.
        moved: whether the code of the run has been found in another folder since its job was submitted.
    """

    number: int
    workers: int
    phase: Phase
    planned_at: float
    not_before: float = 0.0
    from_step: int = 0
    job: str | None = None
    submitted_at: float | None = None
    ended_at: float | None = None
    gone_at: float | None = None
    cause: Cause | None = None
    failure: Failure | None = None
    progress: Progress | None = None
    members: tuple[int, ...] | None = None
    machines: tuple[str, ...] = ()
    home: int | None = None
    replaces: tuple[int, ...] = ()
    failed: tuple[WorkerStatus, ...] = ()
    failed_at: int = 0
    saved_at: int = 0
    held: str | None = None
    moved: bool = False

    @property
    def wait(self) -> Wait | None:
        """What it waits for before the engine has it: to be taken."""
        if self.held is None:
            return None
        return Wait(Waiting.QUEUED, self.workers, self.workers, self.held)

    @property
    def last_step(self) -> int:
        """The newest step it is known to have reached; where it never reported, the step it began at."""
        told = self.progress.step if self.progress else 0
        return max(self.from_step, self.failed_at, self.saved_at, told)

    @property
    def restored_at(self) -> int:
        """The step that its training went on from, as far as that is known."""
        # What workers had in memory, or on their disks, when it was submitted may have been committed since.
        told = self.progress.stretches[0].from_step if self.progress and self.progress.stretches else 0
        return max(self.from_step, told)

    @property
    def advanced(self) -> bool:
        """Whether it did any step of its own."""
        return self.last_step > self.restored_at


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint: its step, the attempt that wrote it, the key of its manifest, when it was seen."""

    step: int
    attempt: int
    key: str
    at: float


@dataclass(frozen=True, slots=True)
class Trouble:
    """What a worker has met with a checkpoint: its step, the worker, what is wrong, and of which attempt."""

    step: int
    worker: str
    reason: str
    attempt: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The save of this step was due, and left out."""

    step: int
    reason: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Unpruned:
    """When the checkpoint of this step was committed nothing older was removed, as what would stay is damaged."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ending:
    """Somebody or something wants the run to end: STOP or DEADLINE, who or what, since when."""

    cause: Cause
    by: str
    at: float

    @property
    def reason(self) -> str:
        """In a sentence."""
        return f"stopped by {self.by}" if self.cause is Cause.STOP else self.by


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything the journal says.

    Attributes:
        spec: what the run is.
        created_at: epoch seconds.
        opened_at: when this life of the run began: its creation or its newest reopening.
        rested_seconds: how long it lay ended before it was reopened, all times together.
        first_attempt: index of the first attempt of this life; earlier ones do not count against budget or crash loop.
        scales_in_place: whether a live attempt can change its workers.
        owner: whose word to stop counts.
        task: the task instance that the owner is a try of; None for a shell, and where nobody has said.
        target: workers wanted.
        attempts: all of them, oldest first; the last one is the current one.
        checkpoint: the newest.
        checkpoints: how many were committed.
        phases: how many of its trainings are known to be over.
        damaged: steps whose checkpoints were set aside, and have not been saved anew.
        unsaved: what was last told not to be written, by this attempt or an earlier one; None where one was since.
        left_out: the save that was last told to be left out; it stays, as the next may be, too.
        unpruned: what was last told of that; None where a newer checkpoint was committed since.
        bad_copy: the last that was refused; it stays, as it may be a machine's memory or disk that is bad.
        restarts_used: how much of the budget is used.
        planned_steps: scale steps that were planned, or that an autoscaler made, and are known.
        saves: requests to save that the agents have not been told of.
        ending: why the run is to end, if it is.
        outcome: `succeeded`, `failed` or `stopped`, once decided.
        reason: why, in a sentence.
        ended_at: when the last word was written; None until then.
    """

    spec: RunSpec
    created_at: float
    opened_at: float
    scales_in_place: bool
    owner: str | None
    target: int
    attempts: tuple[Attempt, ...]
    first_attempt: int = 0
    rested_seconds: float = 0.0
    checkpoint: Checkpoint | None = None
    checkpoints: int = 0
    damaged: frozenset[int] = frozenset()
    unsaved: Trouble | None = None
    left_out: LeftOut | None = None
    unpruned: Unpruned | None = None
    bad_copy: Trouble | None = None
    restarts_used: int = 0
    planned_steps: frozenset[str] = frozenset()
    saves: tuple[str, ...] = ()
    ending: Ending | None = None
    outcome: str | None = None
    reason: str | None = None
    ended_at: float | None = None
    task: str | None = None
    phases: int = 0

    @property
    def attempt(self) -> Attempt:
        """The current attempt."""
        return self.attempts[-1]

    @property
    def lives(self) -> tuple[Attempt, ...]:
        """The attempts since the run was opened."""
        return self.attempts[self.first_attempt :]

    @property
    def avoid(self) -> tuple[str, ...]:
        """Machines on which this life of the run has lately failed twice, perhaps for their sake."""
        failures = (attempt.failure for attempt in self.lives)
        nodes = [f.node for f in failures if f is not None and f.node is not None and f.kind in OF_MACHINES]
        newest = nodes[-BAD_OF:]
        return tuple(sorted({node for node in newest if newest.count(node) >= BAD_AFTER}))

    @property
    def suspect(self) -> str | None:
        """The machine of the newest failure, where a worker was lost: it may be dead, and its cluster not know yet."""
        failures = [attempt.failure for attempt in self.lives if attempt.failure is not None]
        return failures[-1].node if failures and failures[-1].kind is FailureKind.WORKER_LOST else None

    @property
    def has_elsewhere(self) -> bool:
        """Whether workers have run on other machines than those to avoid: there may be no others at all."""
        avoid = self.avoid
        return any(machine not in avoid for attempt in self.lives for machine in attempt.machines)

    @property
    def deadline_at(self) -> float | None:
        """When the run's time is up, epoch seconds."""
        seconds = self.spec.active_deadline_seconds
        return None if seconds is None else self.opened_at + seconds

    @property
    def ended(self) -> bool:
        """Whether the last word is written."""
        return self.ended_at is not None

    @property
    def label(self) -> str:
        """The state in one word: the outcome, or what the current attempt does."""
        if self.ended and self.outcome:
            return self.outcome
        return {
            Phase.PAUSED: "pausing",
            Phase.SUBMITTING: "submitting",
            Phase.LIVE: "running",
            Phase.ENDING: "ending",
            Phase.GONE: "ending",
        }[self.attempt.phase]

    def with_attempt(self, **changes: object) -> RunState:
        """The same state with the current attempt changed."""
        changed = replace(self.attempt, **changes)  # type: ignore[arg-type]
        return replace(self, attempts=(*self.attempts[:-1], changed))
