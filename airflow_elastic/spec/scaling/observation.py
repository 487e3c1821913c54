"""What a scaling policy sees of a run and its surroundings at one moment. Journaled with each decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: The rule of a decision to go back to the workers that are there, because a step did not work.
FALLBACK = "fallback"


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal since the last change of the number of workers.

    Attributes:
        value: its recent median.
        for_more: of the values within the policy's `up_seconds`, the one that speaks least for more workers. None
            while they are not known for so long.
        for_fewer: within `down_seconds`, the one that speaks least for fewer workers.
    """

    value: float
    for_more: float | None = None
    for_fewer: float | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast the training is with one number of workers.

    Attributes:
        workers: that number.
        step_seconds: seconds a step, with everything that happens between steps except saves.
        steps: how many steps it was measured over; the weight of the evidence.
    """

    workers: int
    step_seconds: float
    steps: int = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """Other work that waits for room which this run has.

    Attributes:
        name: of the work, such as a pod or a Workload.
        workers: how many workers of this run must leave for it.
        priority: its priority.
        seconds: for how long it has waited.
    """

    name: str
    workers: int
    priority: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much room there is for a run, beside all that runs.

    Attributes:
        at: when it was read, epoch seconds.
        free: for how many further workers of the run there is room; None if nothing limits them.
        text: what limits them, in words.
        claims: work of a higher priority that waits for room of this run.
        pools: free workers by node pool or queue, for display.
        priority: of the run itself, where the engine knows one; higher ones come first.
    """

    at: float
    free: int | None = None
    text: str = ""
    claims: tuple[Claim, ...] = ()
    pools: Mapping[str, int] = field(default_factory=dict)
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """What the Brain has given this run of a capacity that several runs share.

    Attributes:
        workers: its share.
        reason: why, with figures.
    """

    workers: int
    reason: str


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at a run.

    Attributes:
        at: the moment, epoch seconds.
        workers: that train now.
        procs: ranks of each worker.
        opened_at: when the run was created or last reopened, epoch seconds.
        step: the newest step.
        total_steps: the last step of the training; None if the script did not say.
        signals: by name, such as `cpu` or `metrics.queue_length`.
        speeds: measured, one for each number of workers that the run has had.
        learnt: the same from earlier runs, where this run has not measured.
        cost_seconds: for how long a scale step stops the training; measured, or a guess.
        capacity: None if the engine does not say.
        share: None if no Brain shares the capacity.
        used_gpu_hours: ranks times hours that the run has used.
        changed_at: when the number of workers last changed, or the attempt began.
        failed_at: when something failed last: an attempt or a scale step. None: nothing has.
        asked_at: when a person last asked for a number of workers. None: nobody has.
        busy: what prevents a step now, in words: a step is under way, workers are waited for. None: nothing.
        held: workers that have been asked for and cannot start yet.
        held_seconds: for how long.
        too_many: numbers of workers that a step has tried to reach, and failed, since the last failure was forgotten.
    """

    at: float
    workers: int
    procs: int = 1
    opened_at: float = 0.0
    step: int = 0
    total_steps: int | None = None
    signals: Mapping[str, Signal] = field(default_factory=dict)
    speeds: tuple[Speed, ...] = ()
    learnt: tuple[Speed, ...] = ()
    cost_seconds: float = 30.0
    capacity: Capacity | None = None
    share: Share | None = None
    used_gpu_hours: float = 0.0
    changed_at: float = 0.0
    failed_at: float | None = None
    asked_at: float | None = None
    busy: str | None = None
    held: int = 0
    held_seconds: float = 0.0
    too_many: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy decides at one moment.

    Attributes:
        workers: the number of workers that the run should have.
        acts: whether that is a change that should be made now.
        rule: the rule that decided: `load`, `capacity`, `worth`, `window`, `deadline`, `budget` or `share`. `steady` if
            no rule asks. A guard is named instead if it prevents a step: `cooldown`, `snooze`, `payback`, `busy`.
            `fallback` if the last step did not work.
        reason: one sentence with the figures.
        wanted: the number that the rules want, before guards.
        figures: the numbers behind it.
    """

    workers: int
    acts: bool
    rule: str
    reason: str
    wanted: int
    figures: Mapping[str, float] = field(default_factory=dict)
