"""What a scaling policy sees of a run, from its state, its newest report, and the signals since the last change."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from airflow_elastic.core.goodput import all_stretches
from airflow_elastic.core.scaling.load import INVERSE
from airflow_elastic.core.state import Phase
from airflow_elastic.spec.scaling.observation import Capacity, Observation, Share, Signal, Speed

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.scaling.policy import ScalingPolicy
    from airflow_elastic.spec.status import JobStatus, Progress, Stretch

#: What a scale step costs before one was measured: about the time that ranks take to start.
GUESSED_COST_SECONDS = 30.0

#: The recent value of a signal is the median of so many seconds.
RECENT_SECONDS = 60.0

#: A signal counts once so many values of it are known, and only beyond so many standard errors of its mean.
LEAST_VALUES, NOISE_ERRORS = 4, 3.0

#: A part of a training with fewer steps says nothing about its speed: the first ones are slow.
LEAST_STEPS = 5

#: A size that a step did not reach is avoided for so many times `snooze_seconds`.
AVOIDED_SNOOZES = 4

#: A time in seconds, and a value.
Sample = tuple[float, float]


def observation(
    state: RunState,
    progress: Progress | None,
    now: float,
    *,
    signals: Mapping[str, Signal] | None = None,
    capacity: Capacity | None = None,
    share: Share | None = None,
    learnt: Sequence[Speed] = (),
    busy: str | None = None,
    held: tuple[int, float] = (0, 0.0),
) -> Observation:
    """One look at a run at the time `now`, epoch seconds. See `Observation` for the rest."""
    memory, policy = state.scaling, state.spec.scaling_policy
    avoided = AVOIDED_SNOOZES * policy.snooze_seconds if policy is not None else 0.0
    lately = memory.failed_at is not None and now - memory.failed_at < avoided
    changed = memory.changed_at or state.attempt.submitted_at or state.opened_at
    return Observation(
        at=now,
        workers=state.attempt.workers,
        procs=state.spec.workers.procs,
        opened_at=state.opened_at,
        step=state.newest_step(progress),
        total_steps=progress.total_steps if progress else None,
        signals=signals or {},
        speeds=speeds(state, progress),
        learnt=tuple(learnt),
        cost_seconds=cost_seconds(state, progress),
        capacity=capacity,
        share=share,
        used_gpu_hours=worker_seconds(state, now) * state.spec.workers.procs / 3600.0,
        changed_at=changed,
        failed_at=memory.failed_at,
        asked_at=memory.asked_at,
        busy=busy,
        held=held[0],
        held_seconds=held[1],
        too_many=memory.failed_sizes if lately else (),
    )


def busy(state: RunState, progress: Progress | None, job: JobStatus | None) -> str | None:
    """Why no step can be made now, in words; None if one can."""
    attempt = state.attempt
    if attempt.phase is not Phase.LIVE or state.ending is not None:
        return f"the run is {state.label}"
    if attempt.workers != state.target:
        return f"a step to {state.target} is under way"
    if attempt.failed:
        return "ranks have failed"
    if attempt.members is not None or (job is not None and job.wait is not None):
        return "workers are waited for"
    if progress is not None and progress.finished:
        return "training is complete"
    newest = progress.stretches[-1] if progress is not None and progress.stretches else None
    fresh = newest is not None and newest.first_step_at is not None and newest.workers == attempt.workers
    if progress is None or (progress.attached and not fresh):
        return "its ranks have done no step yet"
    if not progress.attached:  # a step might cost all that it has done
        return "the script does not report its steps"
    return None


def speeds(state: RunState, progress: Progress | None) -> tuple[Speed, ...]:
    """The measured seconds a step for each number of workers; of several parts, weighted by their steps."""
    seconds: dict[int, float] = {}
    steps: dict[int, int] = {}
    for _, part in all_stretches(state, progress):
        done = part.to_step - part.from_step
        if done >= LEAST_STEPS and part.stepping_seconds > 0:
            seconds[part.workers] = seconds.get(part.workers, 0.0) + part.stepping_seconds
            steps[part.workers] = steps.get(part.workers, 0) + done
    return tuple(Speed(size, seconds[size] / steps[size], steps[size]) for size in sorted(steps))


def cost_seconds(state: RunState, progress: Progress | None) -> float:
    """For how long a scale step stops the training: the median of the known ones, or of the known starts."""
    known, starts = [], []
    before: Stretch | None = None
    for _, part in all_stretches(state, progress):
        if part.first_step_at is None:
            continue
        starts.append(part.first_step_at - part.started_at)
        if before is not None and before.workers != part.workers and before.last_step_at is not None:
            known.append(part.first_step_at - before.last_step_at)
        before = part
    usable = [value for value in known or starts if value > 0]
    return statistics.median(usable) if usable else GUESSED_COST_SECONDS


def worker_seconds(state: RunState, now: float) -> float:
    """Workers times seconds that the run has held so far, by its attempts."""
    total = 0.0
    for attempt in state.attempts:
        if attempt.submitted_at is not None:
            end = attempt.gone_at or attempt.ended_at or state.ended_at or now
            total += max(0.0, end - attempt.submitted_at) * attempt.workers
    return total


def signal(name: str, samples: Iterable[Sample], policy: ScalingPolicy, now: float) -> Signal | None:
    """A signal from its values since the last change of the number of workers; None without any."""
    known = sorted(samples)
    if not known:
        return None
    recent = [value for at, value in known if at >= now - RECENT_SECONDS] or [known[-1][1]]
    up, down = (_within(known, now, seconds) for seconds in (policy.up_seconds, policy.down_seconds))
    sign, noise = (-1.0 if name in INVERSE else 1.0), _noise([value for _, value in known])
    more, fewer = _surely(up, sign, noise), _surely(down, -sign, noise)
    return Signal(statistics.median(recent), more, fewer)


def _within(known: Sequence[Sample], now: float, seconds: float) -> list[float]:
    """The values of the last seconds; none if values are not known for so long."""
    return [value for at, value in known if at >= now - seconds] if known[0][0] <= now - seconds else []


def _noise(values: Sequence[float]) -> float:
    """The standard deviation of the noise, from differences of neighbours: a change of the level counts only once."""
    if len(values) < 2:
        return math.inf
    return math.sqrt(math.pi) / 2 * statistics.fmean(abs(b - a) for a, b in pairwise(values))


def _surely(values: Sequence[float], sign: float, noise: float) -> float | None:
    """The level that noise does not explain: the mean less `NOISE_ERRORS` of its standard errors, or more by `sign`.

    Each value is first replaced by the median of itself and its neighbours, so that a single one decides nothing. The
    result is never beyond any of these medians.
    """
    if len(values) < LEAST_VALUES:
        return None
    signed = [sign * value for value in values]
    smooth = [statistics.median(signed[max(0, i - 1) : i + 2]) for i in range(len(signed))]
    sure = statistics.fmean(signed) - NOISE_ERRORS * noise / math.sqrt(len(signed))
    return sign * min([sure, *smooth])
