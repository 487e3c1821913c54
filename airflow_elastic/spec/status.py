"""What is observed: workers as an engine sees them, and progress as the ranks report it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from airflow_elastic.spec.checkpoints.phases import PhaseRecord
from airflow_elastic.spec.training.early_stop import Watch

_SIGKILL = 9  # sent only by a person, a platform or the kernel: the death of another rank does not cause it


class WorkerPhase(StrEnum):
    """The phases of a worker. `LEFT` is a worker that a scale step sent away: neither a success nor a failure."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    LEFT = "left"


class Waiting(StrEnum):
    """What a worker waits for before it starts, in the order in which it meets these."""

    QUEUED = "queued"  # a queue has not admitted its job
    CAPACITY = "waiting for capacity"  # no machine has room for it
    PULLING = "pulling"  # its image is on the way
    STARTING = "starting"  # everything is there


@dataclass(frozen=True, slots=True)
class Wait:
    """What holds a job up: the earliest waiting state of its pending workers.

    Attributes:
        state: what they wait for.
        workers: how many are in that state.
        of: how many workers the job has, without those that left.
        reason: the engine's words about the first such worker that it has words about.
    """

    state: Waiting
    workers: int
    of: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RankError:
    """How one rank died, as far as is known.

    Attributes:
        rank: global rank, or None where the worker never got one.
        exit_code: what the process returned; None where a signal ended it.
        signal: number of the signal that ended it.
        at: epoch seconds of the exception where there is a traceback, else of the detection.
        error: type and text of the exception.
        traceback: its traceback; without one, the last lines that the rank printed.
        out_of_memory: whether the kernel says that it killed for memory in this worker.
        shortage: for a killed rank, the evidence that its machine was short of memory, or its limit of memory.
        of_fork: whether it failed before its first step in a way that its start by a fork may have caused.
    """

    rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    at: float = 0.0
    error: str | None = None
    traceback: str | None = None
    out_of_memory: bool = False
    shortage: str | None = None
    of_fork: bool = False


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker as the engine sees it.

    Attributes:
        name: the engine's name of the worker, e.g. `node-1`.
        phase: its phase.
        pid: process id of its agent, if the engine knows one.
        node: the machine it is on.
        errors: how its ranks died, if they did.
        reason: the engine's own words, e.g. `Evicted`, or why the worker could not start or has not started.
        preempted: whether the platform took the worker away, for other work or because its machine is removed.
        over_limit: whether the platform ended the worker for using more than a limit of its own, e.g. of disk.
        unattended: whether it saved and ended because it saw no controller.
        waiting: what a pending worker waits for, if the engine knows.
        standby: whether its ranks have failed and its agent can start new ones.
        replaceable: whether it is lost and another worker can take its place in the same job.
    """

    name: str
    phase: WorkerPhase
    pid: int | None = None
    node: str | None = None
    errors: tuple[RankError, ...] = ()
    reason: str | None = None
    preempted: bool = False
    unattended: bool = False
    waiting: Waiting | None = None
    standby: bool = False
    replaceable: bool = False
    over_limit: bool = False

    @property
    def index(self) -> int:
        """The number in its name; -1 where it has none."""
        number = self.name.rpartition("-")[2]
        return int(number) if number.isdecimal() else -1


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody outside the run, such as an autoscaler, has changed the number of a job's workers.

    Attributes:
        workers: how many the job has now.
        request: names this change: the same for all snapshots that show it.
    """

    workers: int
    request: str


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A full snapshot of one job, with all its workers. `core.classify` says why a job failed.

    Attributes:
        workers: every worker that trains, or is to.
        asked: a change of their number from outside the run, where the run should follow it; None: there is none.
        standby_workers: workers that stand by. They are not in `workers`, and how they end is no failure.
    """

    workers: tuple[WorkerStatus, ...] = ()
    asked: Asked | None = None
    standby_workers: tuple[WorkerStatus, ...] = ()

    def phases(self) -> frozenset[WorkerPhase]:
        """The phases that occur, without the workers that left."""
        return frozenset(w.phase for w in self.workers if w.phase is not WorkerPhase.LEFT)

    @property
    def failed(self) -> bool:
        """Whether any worker failed or was lost."""
        return bool(self.phases() & {WorkerPhase.FAILED, WorkerPhase.LOST})

    @property
    def succeeded(self) -> bool:
        """Whether all workers that did not leave have succeeded, and there is at least one."""
        return self.phases() == {WorkerPhase.SUCCEEDED}

    def among(self, members: Collection[int] | None) -> JobStatus:
        """The same with only these workers; None: with all."""
        if members is None:
            return self
        return JobStatus(tuple(worker for worker in self.workers if worker.index in members))

    def told(self, failed: Collection[WorkerStatus]) -> JobStatus:
        """The same with the failures that agents report, for workers that the engine still sees as running."""
        words = {worker.name: worker for worker in failed}
        return replace(
            self,
            workers=tuple(
                replace(worker, phase=WorkerPhase.FAILED, errors=words[worker.name].errors, standby=True)
                if worker.phase is WorkerPhase.RUNNING and worker.name in words
                else worker
                for worker in self.workers
            ),
        )

    def recoverable(self, members: Collection[int] | None) -> bool:
        """Whether the agents of these workers are there, and at least one of them waits to start new ranks.

        Agents may still be missing that are expected; but none of them has ended. None: all workers.
        """
        others = () if members is None else [w for w in self.workers if w.index not in members]
        awaited = all(w.phase in (WorkerPhase.PENDING, WorkerPhase.RUNNING, WorkerPhase.LEFT) for w in others)
        there = [w for w in self.among(members).workers if w.phase is not WorkerPhase.LEFT]
        able = all(w.standby or w.phase is WorkerPhase.RUNNING for w in there)
        return awaited and able and any(w.standby for w in there)

    @property
    def replaceable(self) -> tuple[int, ...]:
        """The lost workers, if others can take their places beside the remaining ones; else ().

        The platform wants the room of a preempted worker, so only a standby worker that is ready can replace it.
        """
        there = [w for w in self.workers if w.phase is not WorkerPhase.LEFT]
        lost = tuple(w.index for w in there if w.replaceable)
        able = all(w.standby or w.phase is WorkerPhase.RUNNING for w in there if not w.replaceable)
        able &= len(self.ready) >= len(lost) or not any(w.preempted for w in there)
        return lost if able and len(lost) < len(there) else ()

    @property
    def ready(self) -> tuple[WorkerStatus, ...]:
        """The standby workers that can take a place at once."""
        return tuple(worker for worker in self.standby_workers if worker.phase is WorkerPhase.RUNNING)

    def machines_without(self, lost: Collection[int]) -> frozenset[str]:
        """The machines of all workers when others have the places of the lost ones.

        Standby workers are where they are. Without them, new workers may come to the machines of the lost ones.
        """
        replaced = lost if lost and len(self.ready) >= len(lost) else ()
        there = (*(worker for worker in self.workers if worker.index not in replaced), *self.ready)
        return frozenset(worker.node for worker in there if worker.node is not None)

    @property
    def settled(self) -> bool:
        """Whether no further evidence about why the job failed can come.

        A lost worker and a killed rank are causes; what other workers may still report follows from them.
        """
        unsettled = {WorkerPhase.PENDING, WorkerPhase.RUNNING}
        killed = any(error.signal == _SIGKILL for worker in self.workers for error in worker.errors)
        return killed or WorkerPhase.LOST in self.phases() or not self.phases() & unsettled

    @property
    def waiting(self) -> Waiting | None:
        """The earliest waiting state of pending workers; None if none is pending, or the engine does not say."""
        states = {w.waiting for w in self.workers if w.phase is WorkerPhase.PENDING}
        return next((state for state in Waiting if state in states), None)

    @property
    def wait(self) -> Wait | None:
        """The same with the number of workers in that state, and the engine's first words about them."""
        if (state := self.waiting) is None:
            return None
        there = [w for w in self.workers if w.phase is not WorkerPhase.LEFT]
        held = [w for w in there if w.phase is WorkerPhase.PENDING and w.waiting is state]
        return Wait(state, len(held), len(there), next((w.reason for w in held if w.reason), None))


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank reports. Times are epoch seconds, durations seconds, memory bytes.

    `forward_seconds`: duration of a forward pass of the model, which involves no other rank; 0 if it is not measured.
    """

    rank: int
    worker: str
    step: int
    at: float
    step_seconds: float = 0.0
    loss: float | None = None
    memory_bytes: int = 0
    forward_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StateOnDisk:
    """A part of a state on the disk of a worker's machine.

    Attributes:
        data: the name of its folder, as in the run's storage.
        part: number of the worker that saved the part, among those that trained.
        of: how many workers trained, each with a part of its own.
    """

    data: str
    part: int
    of: int


@dataclass(frozen=True, slots=True)
class WorkerUsage:
    """What one worker uses of its machine. None: unknown.

    Attributes:
        worker: its name.
        at: when it was measured, epoch seconds.
        machine: the name of its machine.
        ranks: the numbers of its ranks.
        cpu: processors in use; 1.5 are one and a half.
        memory_bytes: memory of its processes. What they share counts once.
        gpu_utilisation: the share of time in which its GPUs compute, from 0 to 1; the mean of all.
        gpu_memory_bytes: memory in use of its GPUs, together.
        received_bytes_per_second: what it gets over the network; unknown if it shares the machine with other workers.
        sent_bytes_per_second: what it sends; unknown as well in that case.
        state_bytes: memory and disk that states of the training take on its machine, also those of another worker.
        on_disk: the states on the disk of its machine. Only the lead gets to know; it reports `Progress.on_disk`.
    """

    worker: str
    at: float
    machine: str = ""
    ranks: tuple[int, ...] = ()
    cpu: float | None = None
    memory_bytes: int | None = None
    gpu_utilisation: float | None = None
    gpu_memory_bytes: int | None = None
    received_bytes_per_second: float | None = None
    sent_bytes_per_second: float | None = None
    state_bytes: int | None = None
    on_disk: tuple[StateOnDisk, ...] | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of an attempt with one set of ranks: from one rendezvous to the next, or to the end of the attempt.

    Attributes:
        generation: number of the rendezvous within the attempt, from 1.
        world_size: ranks.
        workers: workers.
        started_at: when the ranks were started, epoch seconds.
        first_step_at: when the first optimizer step was done; None before.
        last_step_at: when the newest step was done.
        from_step: the step that was restored.
        to_step: the newest step done.
        stepping_seconds: time in training steps, without saves.
        saving_seconds: time that saves stopped the loop.
        restoring_seconds: time that loading the checkpoint took.
        restored_bytes: bytes of the checkpoint that ranks have read so far. What one fetches for others counts twice.
        to_restore_bytes: bytes that all ranks together have to read.
        stayed: ranks whose processes were in the generation before, too; None: no rank is known to.
    """

    generation: int
    world_size: int
    workers: int
    started_at: float
    first_step_at: float | None = None
    last_step_at: float | None = None
    from_step: int = 0
    to_step: int = 0
    stepping_seconds: float = 0.0
    saving_seconds: float = 0.0
    restoring_seconds: float = 0.0
    restored_bytes: int = 0
    to_restore_bytes: int = 0
    stayed: int | None = None

    @property
    def is_restoring(self) -> bool:
        """Whether ranks are reading the checkpoint."""
        return self.first_step_at is None and self.restored_bytes < self.to_restore_bytes


@dataclass(frozen=True, slots=True)
class Progress:
    """The newest report of an attempt's lead agent: one object per interval, for all ranks.

    Attributes:
        attempt: number of the attempt.
        at: when it was written, by the lead agent's clock.
        step: newest optimizer step that every rank has done.
        moved_at: when `step` last rose, a save was written, or a part of the checkpoint was read.
        total_steps: the last step of the training; None if the script did not say.
        epoch: current epoch, from 0.
        samples: position in the data: samples consumed by the run since step 0, each counted once.
        samples_per_second: recent throughput of all ranks together.
        loss: newest loss of rank 0, as the script gave it.
        metrics: newest further numbers of rank 0; after the script's `finish`, its results.
        world_size: ranks at work.
        stretches: one for each rendezvous of the attempt, oldest first.
        ranks: newest report of each rank.
        attached: whether any rank uses our runtime. Silence of a script that does not is never a failure.
        finished: whether the script has said that training is complete.
        saved: the newest step whose state its ranks have saved, written to storage or not; -1 where there is none.
        left_out: the newest step whose save was skipped because the one before was still being written; or -1.
        writing_seconds: how long it took to write the newest save to storage, as far as agents know.
        phases: the trainings of the run so far, in order, where its script names them.
        usage: what each worker uses of its machine, as it last said.
        odd: which of `loss` and `metrics.NAME` are not finite now, in words: `NaN`, `Infinity`, `-Infinity`.
        on_disk: the folders of `checkpoints/data/` that are whole on the workers' own disks. None: unknown, or no disk.
        early_stop: the metric that decides whether training ends early.
    """

    attempt: int
    at: float
    step: int = 0
    moved_at: float = 0.0
    total_steps: int | None = None
    epoch: int = 0
    samples: int = 0
    samples_per_second: float = 0.0
    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    world_size: int = 0
    stretches: tuple[Stretch, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    attached: bool = False
    finished: bool = False
    saved: int = -1
    left_out: int = -1
    writing_seconds: float = 0.0
    phases: tuple[PhaseRecord, ...] = ()
    usage: tuple[WorkerUsage, ...] = ()
    odd: Mapping[str, str] = field(default_factory=dict)
    on_disk: tuple[str, ...] | None = None
    early_stop: Watch | None = None
