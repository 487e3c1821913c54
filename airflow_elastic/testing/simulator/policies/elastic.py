"""The scaling of this project: `core.scaling.decide` for each run, alone or with a share of the cluster from the Brain.

Alone, a run starts with the requested workers, or after a while with those that have room. It grows into what is free
while that is worth it. With shares, a worker goes where it adds the most, and runs begin with their share. Later runs
of the same kind know what earlier ones have measured. The guards are those of `ScalingPolicy`.

A run is looked at when something has changed that its decision depends on, or when a guard has run out. In between its
decision would be the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from airflow_elastic.core.brain.shares import Claim, shares
from airflow_elastic.core.scaling import observe
from airflow_elastic.core.scaling.decide import decide
from airflow_elastic.core.scaling.throughput import MOST_STEPS, Fit, best_known, fit
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.scaling.observation import Capacity, Decision, Observation, Share, Speed
from airflow_elastic.spec.scaling.policy import CapacityRule, ScalingPolicy, WorthRule
from airflow_elastic.testing.simulator.policies.api import View
from airflow_elastic.testing.simulator.run import EPOCH, Run
from airflow_elastic.testing.simulator.traces.trace import Job

ALONE = ScalingPolicy(capacity=CapacityRule(), worth=WorthRule())
SHARED = ScalingPolicy(capacity=CapacityRule())

#: So often it looks when nothing happens: what runs measure changes their curves.
REFRESH_SECONDS = 120.0

#: A decision not to make a step because it does not pay is taken again after so long.
AGAIN_SECONDS = 600.0


#: Of what earlier runs have measured, so many sizes are used: the ones with the most steps.
MOST_SIZES = 8


@dataclass(frozen=True, slots=True)
class _Known:
    """A fitted curve: the size it was looked at with, until when it counts, and the steps of each size behind it."""

    held: int
    fresh_until: float
    steps: tuple[tuple[int, int], ...]
    curve: Fit | None


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
        self._claims: tuple[object, ...] = ()
        self._curves: dict[int, _Known] = {}
        self._told: dict[str, tuple[Speed, ...]] = {}
        self._known: dict[str, dict[int, tuple[float, int]]] = {}
        self._seen: dict[int, tuple[object, ...]] = {}
        self._due: dict[int, float] = {}
        self.decisions = 0

    def workers(self, job: Job, view: View) -> Workers:
        count = job.workers
        if self._shared:
            new = self._claim(job, "new", fit(self._learnt(job.kind)), False, view.now)
            claims = [self._of(run, view) for run in (*view.running, *view.waiting)]
            count = max(job.least, shares([*claims, new], view.capacity)["new"])
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
            self._share_out(view)
        # Room is given back before others take it.
        for run in sorted(view.running, key=lambda run: (self._less(run), run.order)):
            if run.state.spec.scaling_policy is not None and not run.waits:
                self._look_at(run, view)
        again = [*self._due.values()]
        if view.running:  # meanwhile they measure
            again.append(view.now + REFRESH_SECONDS)
        return min(again, default=None)

    def ended(self, run: Run) -> None:
        self._told.pop(run.job.kind, None)
        known = self._known.setdefault(run.job.kind, {})
        for speed in run.speeds(run.ended_at or 0.0):
            seconds, steps = known.get(speed.workers, (0.0, 0))
            known[speed.workers] = seconds + speed.step_seconds * speed.steps, steps + speed.steps
        self._shares.pop(run.order, None)
        self._curves.pop(run.order, None)
        self._seen.pop(run.order, None)
        self._due.pop(run.order, None)

    def _less(self, run: Run) -> bool:
        share = self._shares.get(run.order)
        return share is None or share.workers >= run.held

    def _look_at(self, run: Run, view: View) -> None:
        share, free = self._shares.get(run.order), view.room(run)
        partial = run.state.attempt.members is not None
        self._curve(run, view.now)
        key: tuple[object, ...] = (run.state.attempt.number, run.doing, run.held, partial)
        key = (*key, share and share.workers, self._curves[run.order].steps)
        if not self._shared:
            key = (*key, min(free, run.job.most - run.held))
        elif share is not None and share.workers > run.held:
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

    def _share_out(self, view: View) -> None:
        """The shares of all runs, if a run, a curve or the capacity is another than before."""
        runs = [*view.running, *view.waiting]
        claims = [self._of(run, view) for run in runs]
        key = (view.capacity, *((claim.run, claim.trains, id(claim.curve)) for claim in claims))
        if key == self._claims:
            return
        self._claims = key
        given = shares(claims, view.capacity)
        text = f"of {view.capacity} GPUs that {len(runs)} runs share"
        self._shares = {
            run.order: Share(given[claim.run], f"{given[claim.run]} workers {text}")
            for run, claim in zip(runs, claims, strict=True)
        }

    def _of(self, run: Run, view: View) -> Claim:
        return self._claim(
            run.job, f"{run.order}", self._curve(run, view.now), run.held > 0, run.job.submitted_at
        )

    def _claim(self, job: Job, name: str, curve: Fit | None, trains: bool, since: float) -> Claim:
        return Claim(name, _sizes(job.least, job.most), 0, job.gpus, curve, trains, since)

    def _curve(self, run: Run, now: float) -> Fit | None:
        """The curve of what is known. It is fitted again when another size is known, or one twice as well."""
        known = self._curves.get(run.order)
        if known is not None and known.held == run.held and now < known.fresh_until:
            return known.curve
        measured, learnt = run.speeds(now), self._learnt(run.job.kind)
        steps = tuple((one.workers, min(one.steps, MOST_STEPS).bit_length()) for one in (*measured, *learnt))
        fresh = now + REFRESH_SECONDS
        if known is not None and known.steps == steps:
            self._curves[run.order] = _Known(run.held, fresh, steps, known.curve)
        else:
            self._curves[run.order] = _Known(run.held, fresh, steps, fit(best_known(measured, learnt)))
        return self._curves[run.order].curve

    def _learnt(self, kind: str) -> tuple[Speed, ...]:
        """What ended runs of this kind have measured, at the sizes that are known best."""
        if kind not in self._told:
            known = self._known.get(kind, {})
            best = sorted(known, key=lambda size: -known[size][1])[:MOST_SIZES]
            self._told[kind] = tuple(
                Speed(size, known[size][0] / known[size][1], known[size][1]) for size in sorted(best)
            )
        return self._told[kind]


@cache
def _sizes(least: int, most: int) -> tuple[int, ...]:
    return tuple(range(least, most + 1))
