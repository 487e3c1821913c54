"""The scaling of this project: `core.scaling.decide` for each run, alone or with a share of the cluster from the Brain.

Alone, a run starts with the requested workers, or after a while with those that have room. It grows into what is free
while that is worth it. With shares, a worker goes where it adds the most, and runs begin with their share. Later runs
of the same kind know what earlier ones have measured. The guards are those of `ScalingPolicy`.

A run is looked at when something has changed that its decision depends on, or when a guard has run out. In between its
decision would be the same.
"""

from __future__ import annotations

import math

from airflow_elastic.core.scaling import observe
from airflow_elastic.core.scaling.decide import decide
from airflow_elastic.core.scaling.throughput import Fit, best_known, fit
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.scaling.observation import Capacity, Decision, Observation, Share, Speed
from airflow_elastic.spec.scaling.policy import CapacityRule, ScalingPolicy, WorthRule
from airflow_elastic.testing.simulator.policies.api import View
from airflow_elastic.testing.simulator.policies.shares import Ask, shares
from airflow_elastic.testing.simulator.run import EPOCH, Run
from airflow_elastic.testing.simulator.traces.trace import Job

ALONE = ScalingPolicy(capacity=CapacityRule(), worth=WorthRule())
SHARED = ScalingPolicy(capacity=CapacityRule())

#: The curve before anything was measured: 0.9 of a step is divided, as the core assumes after one size.
UNKNOWN = Fit(0.1, 0.9, 0.0, ())

#: A decision not to make a step because it does not pay is taken again after so long.
AGAIN_SECONDS = 600.0


class Elastic:
    """This project.

    Args:
        shared: whether the Brain shares the cluster among runs.
        policy: of each run; by default `SHARED` or `ALONE`.
    """

    source = "this project"

    def __init__(self, *, shared: bool, policy: ScalingPolicy | None = None) -> None:
        self.name = "elastic-shared" if shared else "elastic-alone"
        self._shared = shared
        self._policy = policy or (SHARED if shared else ALONE)
        self.interval = self._policy.interval_seconds
        self._shares: dict[int, Share] = {}
        self._known: dict[str, dict[int, tuple[float, int]]] = {}
        self._seen: dict[int, tuple[object, ...]] = {}
        self._due: dict[int, float] = {}
        self.decisions = 0

    def workers(self, job: Job, view: View) -> Workers:
        count = job.workers
        if self._shared:
            new = Ask(-1, job.least, job.most, job.gpus, 0, self._curve(job.kind, ()))
            count = max(job.least, shares([*self._asks(view), new], view.capacity)[-1].workers)
        return Workers(count, job.least, job.most)

    def own(self, job: Job) -> ScalingPolicy | None:
        return self._policy

    def start(self, run: Run, room: int) -> int:
        wanted = run.state.attempt.workers
        return min(wanted, room) if room >= run.job.least else 0

    def least(self, run: Run) -> int:
        return run.job.least

    def look(self, view: View) -> float | None:
        if self._shared:
            self._shares = shares(self._asks(view), view.capacity)
        # Room is given back before others take it.
        for run in sorted(view.running, key=lambda run: (self._less(run), run.order)):
            if run.state.spec.scaling_policy is not None and not run.waits:
                self._look_at(run, view)
        return min(self._due.values(), default=None)

    def ended(self, run: Run) -> None:
        known = self._known.setdefault(run.job.kind, {})
        for speed in run.speeds():
            seconds, steps = known.get(speed.workers, (0.0, 0))
            known[speed.workers] = seconds + speed.step_seconds * speed.steps, steps + speed.steps
        for found in (self._shares, self._seen, self._due):
            found.pop(run.order, None)

    def _less(self, run: Run) -> bool:
        share = self._shares.get(run.order)
        return share is None or share.workers >= run.held

    def _look_at(self, run: Run, view: View) -> None:
        share, free = self._shares.get(run.order), view.room(run)
        partial = run.state.attempt.members is not None
        key = (run.state.attempt.number, run.doing, run.held, share and share.workers, partial) + (
            () if self._shared else (min(free, run.job.most - run.held),)
        )
        # What is not free now, a larger share cannot be made of.
        if self._shared and share is not None and share.workers > run.held:
            key = (*key, min(free, share.workers - run.held))
        if self._seen.get(run.order) == key and view.now < self._due.get(run.order, math.inf):
            return
        self._seen[run.order] = key
        self._due.pop(run.order, None)
        busy = view.busy(run)
        if busy and not partial:
            return
        seen = self._observation(run, view, busy, share, free)
        decision = decide(self._policy, run.spec.workers, seen)
        self.decisions += 1
        if decision.acts:
            view.decided(run, decision, seen)
        elif (due := self._when(decision, seen)) is not None:
            self._due[run.order] = due

    def _observation(
        self, run: Run, view: View, busy: str | None, share: Share | None, free: int
    ) -> Observation:
        now = EPOCH + view.now
        attempt = run.state.attempt
        missing = attempt.workers - run.held if attempt.members is not None else 0
        since = now - (run.state.scaling.changed_at or now)
        return observe.observation(
            run.state,
            run.progress(view.now),
            now,
            capacity=Capacity(now, free),
            share=share,
            learnt=self._learnt(run.job.kind) if self._shared else (),
            busy=busy,
            held=(missing, since) if missing else (0, 0.0),
        )

    def _when(self, decision: Decision, seen: Observation) -> float | None:
        """When a guard that keeps the run from a step has run out; virtual seconds."""
        policy = self._policy
        if seen.held:
            return seen.at - EPOCH - seen.held_seconds + 2 * policy.up_seconds + 0.001
        if decision.rule == "payback":
            return seen.at - EPOCH + AGAIN_SECONDS
        if decision.rule not in ("cooldown", "snooze"):
            return None
        wait = policy.up_seconds if decision.wanted > seen.workers else policy.down_seconds
        ends = [
            since + pause
            for since, pause in (
                (seen.changed_at, wait),
                (seen.failed_at, policy.snooze_seconds),
                (seen.asked_at, policy.snooze_seconds),
            )
            if since is not None and since + pause > seen.at
        ]
        return min(ends) - EPOCH if ends else None

    def _asks(self, view: View) -> list[Ask]:
        return [
            Ask(
                run.order,
                run.job.least,
                run.job.most,
                run.job.gpus,
                run.held,
                self._curve(run.job.kind, run.speeds()),
            )
            for run in (*view.running, *view.waiting)
        ]

    def _curve(self, kind: str, measured: tuple[Speed, ...]) -> Fit:
        return fit(best_known(measured, self._learnt(kind))) or UNKNOWN

    def _learnt(self, kind: str) -> tuple[Speed, ...]:
        known = self._known.get(kind, {})
        return tuple(Speed(size, seconds / steps, steps) for size, (seconds, steps) in sorted(known.items()))
