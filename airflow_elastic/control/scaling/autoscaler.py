"""Carries a run's scaling policy out: it looks at intervals, lets the core decide, and hands the decision on.

What it collects between two looks is lost with its controller, and collected again by the next one. All that decides is
in the event, so the journal alone explains each step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from airflow_elastic.adapters.host.event_loop import end_task
from airflow_elastic.control.scaling.past_runs import PastRuns
from airflow_elastic.core.scaling import observe
from airflow_elastic.core.scaling.decide import decide
from airflow_elastic.core.scaling.signals import readings
from airflow_elastic.engines.api import MeasuresCapacity
from airflow_elastic.engines.quantities import number_of
from airflow_elastic.spec.errors import ElasticError
from airflow_elastic.spec.scaling.events import ScaleDecided
from airflow_elastic.spec.scaling.observation import Capacity
from airflow_elastic.spec.status import WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_elastic.core.scaling.observe import Sample
    from airflow_elastic.core.state import RunState
    from airflow_elastic.engines.api import Engine, Job
    from airflow_elastic.spec.scaling.observation import Decision, Observation, Share, Speed
    from airflow_elastic.spec.scaling.policy import ScalingPolicy
    from airflow_elastic.spec.status import JobStatus, Progress

log = logging.getLogger(__name__)

#: At most so many values of each signal are kept, spread over the time that the policy looks back.
MOST_SAMPLES = 300

#: A cluster that has not answered after so long is asked again at the next look.
CAPACITY_SECONDS = 20.0


class _Surroundings(NamedTuple):
    """What others say: the engine, and the memory of past runs."""

    capacity: Capacity | None
    learnt: tuple[Speed, ...]
    share: Share | None


class Autoscaler:
    """One run's.

    Args:
        engine: is asked for the free capacity.
        wake: set when a look is due to be evaluated.
        now: epoch seconds.
    """

    def __init__(self, engine: Engine, wake: asyncio.Event, now: Callable[[], float]) -> None:
        self._engine, self._wake, self._now = engine, wake, now
        self._samples: dict[str, deque[Sample]] = {}
        self._free: deque[tuple[float, int | None]] = deque(maxlen=MOST_SAMPLES)
        self._since: float | None = None
        self._sampled_at = self._looked_at = self._told_at = float("-inf")
        self._read: asyncio.Task[_Surroundings] | None = None
        self._past_runs = PastRuns()
        self._trouble = ""

    def hear(self, state: RunState, progress: Progress | None) -> None:
        """Note the signals of a new report."""
        policy = state.spec.scaling_policy
        if policy is None or progress is None or observe.busy(state, progress, None):
            return
        self._forget_former(state)
        every = max(policy.up_seconds, policy.down_seconds) / MOST_SAMPLES
        if (now := self._now()) - self._sampled_at < every:
            return
        self._sampled_at = now
        for name, value in readings(progress, _each(state)).items():
            self._samples.setdefault(name, deque(maxlen=2 * MOST_SAMPLES)).append((now, value))

    async def look(
        self,
        state: RunState,
        progress: Progress | None,
        job: JobStatus,
        held: float,
        of: Callable[[int], Job],
    ) -> Sequence[ScaleDecided]:
        """The event of a decision that says something new, if a look is due.

        Args:
            state: of the run.
            progress: its newest report.
            job: the workers of the current attempt.
            held: for how many seconds workers of it have been held up.
            of: gives the job of an attempt.
        """
        policy = state.spec.scaling_policy
        if policy is None or state.ended:
            return ()
        if self._read is None:
            if self._now() - self._looked_at < policy.interval_seconds:
                return ()
            self._looked_at = self._now()
            there = sum(worker.phase is WorkerPhase.RUNNING for worker in job.workers)
            self._read = asyncio.create_task(
                self._surroundings(policy, of(state.attempt.number), state, progress, there)
            )
            self._read.add_done_callback(lambda _: self._wake.set())
        if not self._read.done():
            return ()
        around, self._read = self._read.result(), None
        seen = self._observation(policy, state, progress, job, held, around)
        decision = decide(policy, state.spec.workers, seen)
        if not self._says_more(policy, state, decision):
            return ()
        self._told_at = seen.at
        return (ScaleDecided(seen.at, decision, seen),)

    async def end(self) -> None:
        """Stop asking, as when an attempt ends."""
        if self._read is not None:
            read, self._read = self._read, None
            await end_task(read)
            await self._past_runs.close()

    def _observation(
        self,
        policy: ScalingPolicy,
        state: RunState,
        progress: Progress | None,
        job: JobStatus,
        held: float,
        around: _Surroundings,
    ) -> Observation:
        now = self._now()
        named = {target.signal for target in policy.load} | {"samples_per_second"}
        if policy.worth is not None and policy.worth.noise_scale:
            named.add("metrics.gradient_noise_scale")
        found = {
            name: signal
            for name, samples in self._samples.items()
            if name in named and (signal := observe.signal(name, samples, policy, now)) is not None
        }
        pending = sum(worker.phase is WorkerPhase.PENDING for worker in job.workers)
        return observe.observation(
            state,
            progress,
            now,
            signals=found,
            capacity=around.capacity,
            share=around.share,
            learnt=around.learnt,
            busy=observe.busy(state, progress, job),
            held=(pending, held) if held else (0, 0.0),
        )

    def _steady(self, policy: ScalingPolicy, state: RunState, capacity: Capacity | None) -> Capacity | None:
        """The capacity with what was free all the time within `up_seconds`: room that comes and goes is no room."""
        if capacity is None:
            return None
        if capacity.at < (state.scaling.changed_at or 0.0):
            return Capacity(capacity.at, None, "it was read before the last change")
        self._free.append((capacity.at, capacity.free))
        recent = [free for at, free in self._free if at >= capacity.at - policy.up_seconds]
        known = [free for free in recent if free is not None]
        return replace(capacity, free=min(known) if known and capacity.free is not None else capacity.free)

    def _forget_former(self, state: RunState) -> None:
        """What was seen with another number of workers says nothing about this one."""
        since = state.scaling.changed_at
        if since != self._since:
            self._since = since
            self._samples.clear()
            self._free.clear()

    def _says_more(self, policy: ScalingPolicy, state: RunState, decision: Decision) -> bool:
        """Whether the journal should have it: each step, and each new reason not to make one, but not too often."""
        if decision.acts:
            return True
        if decision.rule == "busy":
            return False
        last = state.scaling.decided
        if last is not None and (last.decision.rule, last.decision.wanted, last.decision.acts) == (
            decision.rule,
            decision.wanted,
            False,
        ):
            return False
        return self._now() - self._told_at >= policy.up_seconds or last is None

    async def _surroundings(
        self, policy: ScalingPolicy, job: Job, state: RunState, progress: Progress | None, there: int
    ) -> _Surroundings:
        self._forget_former(state)
        capacity = self._steady(policy, state, await self._capacity(policy, job))
        learnt = await self._past_runs.learnt(state)
        speeds = observe.speeds(state, progress)
        share = await self._past_runs.share(job.run_uri, state, capacity, speeds, there)
        return _Surroundings(capacity, learnt, share)

    async def _capacity(self, policy: ScalingPolicy, job: Job) -> Capacity | None:
        asked = policy.capacity is not None or job.spec.brain == "cluster"
        if not asked or not isinstance(self._engine, MeasuresCapacity):
            return None
        try:
            async with asyncio.timeout(CAPACITY_SECONDS):
                return await self._engine.capacity(job)
        except TimeoutError:
            text = f"no answer within {CAPACITY_SECONDS:g} s"
        except Exception as error:  # whatever an engine raises, the run goes on with the workers that it has
            text = str(error) if isinstance(error, ElasticError) else f"{type(error).__name__}: {error}"
        if text != self._trouble:  # once, and not at each look
            self._trouble = text
            log.warning("the free capacity is not known: %s", text)
        return Capacity(time.time(), None, text)


def _each(state: RunState) -> dict[str, float]:
    """What a worker has: processors, one for each rank unless the resources say so, and memory."""
    resources = state.spec.workers.resources
    found = {"cpu": float(state.spec.workers.procs)}
    for name in ("cpu", "memory"):
        if name in resources:
            found[name] = float(number_of(resources[name]))
    return found
