"""What the memory keeps of one run. It follows from journal, report and history, so it can be made again."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from airflow_elastic.core.brain.kind import batch_of, kind_of, training_of
from airflow_elastic.core.brain.use import Use, uses
from airflow_elastic.core.goodput import all_stretches, goodput, goodput_share
from airflow_elastic.core.scaling.observe import speeds, worker_seconds
from airflow_elastic.core.state import REPEATABLE, Cause, FailureKind

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.history import History
    from airflow_elastic.spec.scaling.observation import Speed
    from airflow_elastic.spec.status import Progress


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things took that are no steps, in seconds. None: it has not happened, or was not measured.

    Attributes:
        starts: how many starts of ranks have reached a step.
        start_seconds: the median of these, from the start to the first step.
        longest_start_seconds: the longest.
        restore_seconds: the longest time that a checkpoint was loaded.
        saves: committed checkpoints.
        save_seconds: for how long a save stopped the training, on average.
        written_seconds: until the newest save was in storage.
        step_cost_seconds: for how long a change of the number of workers stopped the training: the median.
        pause_seconds: the longest time without a step within one set of ranks that went on afterwards.
        worker_hours: workers times hours that attempts have had.
        failures: attempts that failed for another reason than the program's own.
        out_of_memory: attempts that ran out of memory.
    """

    starts: int = 0
    start_seconds: float | None = None
    longest_start_seconds: float | None = None
    restore_seconds: float | None = None
    saves: int = 0
    save_seconds: float | None = None
    written_seconds: float | None = None
    step_cost_seconds: float | None = None
    pause_seconds: float | None = None
    worker_hours: float = 0.0
    failures: int = 0
    out_of_memory: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """One run, as the memory has it. Times are epoch seconds.

    Attributes:
        uri: its URI.
        name: its name.
        kind: the same for all runs that are alike.
        training: the same for those of them that have equal arguments.
        engine: where it ran.
        launcher: how its ranks were started.
        owner: its task instance, or who started it.
        outcome: `succeeded`, `failed`, `stopped`; None while it goes on.
        created_at: when it was created.
        ended_at: when it ended.
        wall_seconds: from then to its end or to now, without the time between an end and a reopening.
        goodput: the share of it in steps that count, 0 to 1.
        spent: seconds by the rows of `core.goodput`.
        steps: the newest step.
        total_steps: the last step of the training; None if the script did not say.
        workers: the newest number of workers.
        procs: ranks of each.
        gpu_hours: ranks times hours.
        samples_per_second: the newest throughput of all ranks.
        batch: the option of its command that gives the batch of a rank, and its value.
        resources: what each worker asked for.
        entries: how many entries its journal had.
        speeds: seconds a step by number of workers.
        uses: what workers used of their machines.
        timing: the rest.
    """

    uri: str
    name: str
    kind: str
    training: str
    engine: str
    launcher: str
    owner: str | None
    outcome: str | None
    created_at: float
    ended_at: float | None
    wall_seconds: float
    goodput: float
    steps: int
    total_steps: int | None
    workers: int
    procs: int
    gpu_hours: float
    samples_per_second: float
    entries: int
    spent: dict[str, float] = field(default_factory=dict)
    batch: tuple[str, int] | None = None
    resources: dict[str, str] = field(default_factory=dict)
    speeds: tuple[Speed, ...] = ()
    uses: tuple[Use, ...] = ()
    timing: Timing = field(default_factory=Timing)


def facts(
    uri: str, state: RunState, progress: Progress | None, history: History, entries: int, now: float
) -> Facts:
    """What is kept of a run.

    Args:
        uri: its URI.
        state: from its journal.
        progress: the newest report of its current attempt; None where there is none.
        history: all that is stored of it.
        entries: how many entries the journal has.
        now: when the run was last heard of, epoch seconds; of a run that has ended it changes nothing.
    """
    told = progress if progress is not None and progress.attempt == state.attempt.number else None
    told = told or state.attempt.progress
    spent, spec = goodput(state, told, now), state.spec
    ended = state.ended_at if state.ended else None
    return Facts(
        uri=uri,
        name=spec.name,
        kind=kind_of(spec),
        training=training_of(spec),
        engine=spec.engine,
        launcher=spec.launcher,
        owner=state.task or state.owner,
        outcome=state.outcome if state.ended else None,
        created_at=state.created_at,
        ended_at=ended,
        wall_seconds=spent["wall"],
        goodput=goodput_share(spent),
        spent={row: seconds for row, seconds in spent.items() if row != "wall" and seconds > 0},
        steps=state.newest_step(told),
        total_steps=_last_total(state, told),
        workers=state.attempt.workers,
        procs=spec.workers.procs,
        gpu_hours=worker_seconds(state, now) * spec.workers.procs / 3600.0,
        samples_per_second=_finite(told.samples_per_second if told else 0.0),
        entries=entries,
        batch=batch_of(spec.command),
        resources=dict(spec.workers.resources),
        speeds=speeds(state, told),
        uses=uses(history.training.matrices),
        timing=_timing(state, told, history, now),
    )


def _timing(state: RunState, told: Progress | None, history: History, now: float) -> Timing:
    parts = [part for _, part in all_stretches(state, told)]
    starts = [
        one.first_step_at - one.started_at
        for one in parts
        if one.first_step_at is not None and one.first_step_at > one.started_at
    ]
    restores = [one.restoring_seconds for one in parts if one.restoring_seconds > 0]
    costs = []
    for before, after in pairwise(parts):
        changed = before.workers != after.workers
        if changed and after.first_step_at is not None and before.last_step_at is not None:
            costs.append(max(0.0, after.first_step_at - before.last_step_at))
    saving = sum(one.saving_seconds for one in parts)
    failed = [one for one in state.attempts if one.cause is Cause.FAILURE]
    kinds = [one.failure.kind for one in failed if one.failure is not None]
    memory = sum(kind is FailureKind.OUT_OF_MEMORY for kind in kinds)
    program = sum(kind in REPEATABLE for kind in kinds)
    return Timing(
        starts=len(starts),
        start_seconds=statistics.median(starts) if starts else None,
        longest_start_seconds=max(starts, default=None),
        restore_seconds=max(restores, default=None),
        saves=state.checkpoints,
        save_seconds=saving / state.checkpoints if state.checkpoints else None,
        written_seconds=told.writing_seconds if told and told.writing_seconds > 0 else None,
        step_cost_seconds=statistics.median(costs) if costs else None,
        pause_seconds=_longest_pause(history),
        worker_hours=worker_seconds(state, now) / 3600.0,
        failures=len(failed) - program,
        out_of_memory=memory,
    )


def _longest_pause(history: History) -> float | None:
    """The longest time between two rises of the step, within one set of ranks."""
    table = history.training.table
    steps = table.columns.get("step")
    if steps is None:
        return None
    ranks = [table.columns[name] for name in ("attempt", "generation") if name in table.columns]
    longest: float | None = None
    before: tuple[float, float, tuple[float, ...]] | None = None  # when it rose, to what, with which ranks
    for i, at in enumerate(table.t):
        if not steps.count[i]:
            continue
        same = tuple(column.max[i] for column in ranks)
        if before is None or same != before[2] or steps.max[i] < before[1]:
            before = at, steps.max[i], same
        elif steps.max[i] > before[1]:
            longest = max(longest or 0.0, at - before[0])
            before = at, steps.max[i], same
    return longest


def _last_total(state: RunState, told: Progress | None) -> int | None:
    known = [one.progress for one in state.attempts if one.progress is not None]
    totals = [one.total_steps for one in (*known, *([told] if told else [])) if one.total_steps is not None]
    return totals[-1] if totals else None


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0
