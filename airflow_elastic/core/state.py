"""The state of a run: its whole journal, folded together. Frozen; `core.machine` makes new ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from airflow_elastic.core.scale_memory import NOTHING, ScaleMemory
from airflow_elastic.spec.brain.proposal import Proposal
from airflow_elastic.spec.models.start import Origin
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.status import Progress, Wait, Waiting, WorkerStatus
from airflow_elastic.spec.training.recovery import Recovery


class Phase(StrEnum):
    """The phase of an attempt. At most one attempt of a run is in a phase other than PAUSED and GONE."""

    PAUSED = "paused"  # planned for after the pause; no job exists
    SUBMITTING = "submitting"  # the engine may or may not have it
    LIVE = "live"  # the engine has it
    ENDING = "ending"  # it is being removed; a part of it may still run
    GONE = "gone"  # nothing runs any more, or can start again


class Cause(StrEnum):
    """Why an attempt ended. Only FAILURE uses up the run's budget."""

    SUCCEEDED = "succeeded"
    FAILURE = "failure"
    PREEMPTION = "preemption"
    UNATTENDED = "unattended"
    SCALE_STEP = "scale step"
    RESUME = "resume"
    STOP = "stop"
    DEADLINE = "deadline"


class FailureKind(StrEnum):
    """The class of a failure. It decides whether and how the run goes on."""

    PREEMPTED = "preempted"
    OVER_LIMIT = "over its limit"
    OUT_OF_MEMORY = "out of memory"
    WORKER_LOST = "worker lost"
    KILLED = "killed"
    CRASHED = "crashed"
    RESTART_ASKED = "restart asked for"
    NEEDS_COLD_START = "needs a cold start"
    CANNOT_START = "cannot start"
    BAD_ARGUMENTS = "bad arguments"
    BAD_INPUT = "bad input"
    CODE_ERROR = "code error"
    STORAGE = "storage failed"
    UNATTENDED = "unattended"
    NO_PROGRESS = "no progress"
    REFUSED = "refused by the engine"
    UNKNOWN = "unknown"


#: Failures by the program and its input, which come again: the rule for crash loops counts these.
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


#: Failures that may come from a machine, and may come again on it.
OF_MACHINES = frozenset(
    {
        FailureKind.WORKER_LOST,
        FailureKind.KILLED,
        FailureKind.CRASHED,
        FailureKind.CANNOT_START,
        FailureKind.UNKNOWN,
    }
)

#: A machine is avoided after so many of the newest failures of machines. At most one machine is avoided at a time: a
#: run with failures everywhere must not lock itself out.
BAD_AFTER, BAD_OF = 2, 3


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed: the class, and the evidence for it.

    Attributes:
        kind: the class.
        reason: one sentence for a person.
        exit_code: in the form of a shell: 128 + signal for a signal, 137 for a lost worker; None if unknown.
        worker: name of the first failing worker.
        node: the machine that may be to blame, if the engine has several.
        rank: global rank of the first failing rank.
        error: type and text of its exception.
        traceback: its traceback; without one, the last lines that it printed.
        all_there: whether each worker's agent has reported its own failure, as when the network between them fails.
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
        workers: workers that it has, or will have.
        planned_at: when it was decided.
        not_before: when its pause is over.
        from_step: step of the newest checkpoint when it was submitted.
        job: the engine's name of its job.
        submitted_at: when the engine had the job.
        ended_at: when its end was seen or ordered.
        gone_at: when it was gone.
        cause: why it ended.
        failure: the evidence, if it failed or was preempted.
        progress: its last report.
        members: the workers that it trains with while others wait; None if it has all of them.
        machines: the machines of its workers when it ended, if the engine has several.
        home: number of the attempt whose job it goes on in; None if it has its own job.
        replaces: lost workers of that job whose places others take.
        failed: workers whose ranks have failed and whose agents stand by.
        failed_at: the newest step that these are known to have done.
        saved_at: step of the newest checkpoint that it has written.
        held: why the engine does not take the job yet; None if no reason is known.
        standby: numbers of the standby workers that were asked for.
        recovery: what took how long from the last step of the attempt before to its first step; None before.
        moved: whether the code of the run has moved to another folder since its job was submitted.
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
    standby: tuple[int, ...] = ()
    recovery: Recovery | None = None
    held: str | None = None
    moved: bool = False

    @property
    def wait(self) -> Wait | None:
        """What it waits for while the engine does not take its job."""
        if self.held is None:
            return None
        return Wait(Waiting.QUEUED, self.workers, self.workers, self.held)

    @property
    def last_step(self) -> int:
        """The newest step it is known to have reached; without reports, the step it began at."""
        told = self.progress.step if self.progress else 0
        return max(self.from_step, self.failed_at, self.saved_at, told)

    @property
    def restored_at(self) -> int:
        """The step that its training went on from, as far as is known."""
        # A state from workers' memory or disks may have been committed after the submission.
        told = self.progress.stretches[0].from_step if self.progress and self.progress.stretches else 0
        return max(self.from_step, told)

    @property
    def advanced(self) -> bool:
        """Whether it has done a step of its own."""
        return self.last_step > self.restored_at


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint: its step, the attempt that wrote it, the key of its manifest, when it was seen."""

    step: int
    attempt: int
    key: str
    at: float


@dataclass(frozen=True, slots=True)
class CheckpointProblem:
    """A problem with a checkpoint: its step, the worker that reported it, the reason, and the attempt."""

    step: int
    worker: str
    reason: str
    attempt: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The save of this step was due, and was skipped."""

    step: int
    reason: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Unpruned:
    """After the commit of this step no older checkpoint was removed, because those to keep are damaged."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ending:
    """The run should end: STOP or DEADLINE, by whom or what, and since when."""

    cause: Cause
    by: str
    at: float

    @property
    def reason(self) -> str:
        """The reason in a sentence."""
        return f"stopped by {self.by}" if self.cause is Cause.STOP else self.by


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything the journal says.

    Attributes:
        spec: the run's specification.
        created_at: epoch seconds.
        opened_at: when the run was created or last reopened.
        rested_seconds: how long it had ended before it was reopened, all times together.
        first_attempt: index of the first attempt since then; earlier ones do not count for budget or crash loops.
        scales_in_place: whether a live attempt can change its workers.
        owner: whose requests to stop count.
        task: the owner's task instance; None for a shell, or if unknown.
        target: wanted number of workers.
        attempts: all of them, oldest first; the last one is the current one.
        checkpoint: the newest.
        checkpoints: how many were committed.
        phases: how many of its phases are known to be over.
        damaged: steps whose checkpoints were set aside, and have not been saved again.
        unsaved: the last failed save, of this attempt or an earlier one; None after a later commit.
        left_out: the last save that was skipped; it stays, because the next one may be skipped, too.
        unpruned: the last refusal to remove checkpoints; None after the commit of a newer one.
        bad_copy: the last copy that was refused; it stays, because a machine's memory or disk may be bad.
        restarts_used: how many restarts of the budget are used.
        planned_steps: known scale steps from the schedule or from an autoscaler.
        saves: requests to save that the agents have not been sent.
        resume_step: step of the checkpoint to go on from, if somebody has chosen one; None once newer ones are set
            aside.
        resumes: the known requests for that.
        resumed_by: number of the last attempt that went on from a chosen checkpoint; 0 if none did.
        excluded: machines that somebody has excluded.
        ending: why the run should end, if it should.
        outcome: `succeeded`, `failed` or `stopped`, once decided.
        reason: why, in a sentence.
        ended_at: when the last event was written; None until then.
        origin: the weights that the run begins with; None: from scratch.
        scaling: what its scaling policy remembers.
        proposals: what past runs proposed when it was created.
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
    unsaved: CheckpointProblem | None = None
    left_out: LeftOut | None = None
    unpruned: Unpruned | None = None
    bad_copy: CheckpointProblem | None = None
    restarts_used: int = 0
    planned_steps: frozenset[str] = frozenset()
    saves: tuple[str, ...] = ()
    resume_step: int | None = None
    resumes: frozenset[str] = frozenset()
    resumed_by: int = 0
    excluded: frozenset[str] = frozenset()
    ending: Ending | None = None
    outcome: str | None = None
    reason: str | None = None
    ended_at: float | None = None
    task: str | None = None
    phases: int = 0
    origin: Origin | None = None
    scaling: ScaleMemory = NOTHING
    proposals: tuple[Proposal, ...] = ()

    @property
    def attempt(self) -> Attempt:
        """The current attempt."""
        return self.attempts[-1]

    @property
    def lives(self) -> tuple[Attempt, ...]:
        """The attempts since the run was created or last reopened."""
        return self.attempts[self.first_attempt :]

    @property
    def avoid(self) -> tuple[str, ...]:
        """Machines that are avoided.

        Somebody has excluded them, or, since the run was opened, the newest two failures happened there.
        """
        failures = (attempt.failure for attempt in self.lives)
        nodes = [f.node for f in failures if f is not None and f.node is not None and f.kind in OF_MACHINES]
        newest = nodes[-BAD_OF:]
        return tuple(sorted({node for node in newest if newest.count(node) >= BAD_AFTER} | self.excluded))

    @property
    def suspect(self) -> str | None:
        """The machine of the newest failure, if a worker was lost: it may be dead without its cluster knowing."""
        failures = [attempt.failure for attempt in self.lives if attempt.failure is not None]
        return failures[-1].node if failures and failures[-1].kind is FailureKind.WORKER_LOST else None

    @property
    def has_elsewhere(self) -> bool:
        """Whether workers have run on machines other than those to avoid: there may be no others at all.

        A person who excludes machines knows of others.
        """
        if self.excluded:
            return True
        avoid = self.avoid
        return any(machine not in avoid for attempt in self.lives for machine in attempt.machines)

    @property
    def deadline_at(self) -> float | None:
        """When the run reaches its active deadline, epoch seconds."""
        seconds = self.spec.active_deadline_seconds
        return None if seconds is None else self.opened_at + seconds

    @property
    def saved_step(self) -> int:
        """The step of the newest committed checkpoint; 0 without one."""
        return self.checkpoint.step if self.checkpoint else 0

    def newest_step(self, progress: Progress | None) -> int:
        """The newest step of a report and of the newest checkpoint. Ranks that restore still report step 0."""
        return max(progress.step if progress else 0, self.saved_step)

    @property
    def ended(self) -> bool:
        """Whether the last event is written."""
        return self.ended_at is not None

    @property
    def label(self) -> str:
        """The state in one word: the outcome, or the current attempt's activity."""
        if self.ended and self.outcome:
            return self.outcome
        words = {Phase.PAUSED: "pausing", Phase.SUBMITTING: "submitting", Phase.LIVE: "running"}
        return words.get(self.attempt.phase, "ending")

    def with_attempt(self, **changes: object) -> RunState:
        """The same state with the current attempt changed."""
        changed = replace(self.attempt, **changes)  # type: ignore[arg-type]
        return replace(self, attempts=(*self.attempts[:-1], changed))
