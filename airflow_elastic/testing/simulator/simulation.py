"""The event loop in virtual time: what happens to runs and machines, one event after the other."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection
from itertools import count

from airflow_elastic.core.machine import due
from airflow_elastic.core.scaling import observe
from airflow_elastic.core.state import Cause, Phase
from airflow_elastic.spec import actions as act
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.scaling.events import ScaleDecided
from airflow_elastic.spec.scaling.observation import Decision, Observation
from airflow_elastic.spec.status import JobStatus, Progress
from airflow_elastic.testing.simulator import evidence
from airflow_elastic.testing.simulator.cluster import Cluster, taken
from airflow_elastic.testing.simulator.costs import Costs
from airflow_elastic.testing.simulator.policies.api import Policy
from airflow_elastic.testing.simulator.queue import Queue
from airflow_elastic.testing.simulator.run import EPOCH, Doing, Run
from airflow_elastic.testing.simulator.traces.trace import Job, Outage, Trace

_ARRIVE, _TIMER, _NODE_GOES, _NODE_COMES, _LOOK, _GATHERED = range(6)


class Simulation:
    """One trace under one policy. `play` runs it to the end.

    Args:
        trace: what is submitted.
        policy: who chooses sizes.
        costs: of starts, saves and steps.
        in_place: whether a live job can change its workers; if not, each step takes a new job.

    Attributes:
        now: virtual seconds since the begin of the trace.
        runs: all that have arrived.
        idle_while_wanted: GPU seconds in which a GPU was free, and work was there that it would have made faster.
        idle: GPU seconds in which a GPU was free and no work could use it.
        available: GPU seconds of all GPUs of present machines, until the last run ended.
        looks: how often the policy looked.
        events: how many events the core got.
    """

    def __init__(
        self, trace: Trace, policy: Policy, costs: Costs | None = None, *, in_place: bool = True
    ) -> None:
        self._trace, self._policy, self._in_place = trace, policy, in_place
        self._costs = costs or Costs()
        self._cluster = Cluster(trace.nodes, trace.gpus)
        self._queue, self._live = Queue(), dict[int, Run]()
        self._heap: list[tuple[float, int, int, object]] = []
        self._numbers = count()
        self._look_at = math.inf
        self._left = len(trace.jobs)
        self._demand = 0
        self._counted_at = 0.0
        self.now = 0.0
        self.runs: list[Run] = []
        self.idle_while_wanted = self.idle = self.available = 0.0
        self.looks = self.events = 0

    def play(self) -> Simulation:
        """To the end of the last run. Returns itself."""
        for job in self._trace.jobs:
            self._push(job.submitted_at, _ARRIVE, job)
        for outage in self._trace.outages:
            self._push(outage.begins, _NODE_GOES, outage)
        while self._left and self._heap:
            at, _, kind, what = heapq.heappop(self._heap)
            self._count(at)
            self.now = at
            self._happen(kind, what)
        self._count(self.now)
        return self

    # -- what policies see and do

    @property
    def running(self) -> Collection[Run]:
        """Runs that hold room, in the order of their submission."""
        return [self._live[order] for order in sorted(self._live)]

    @property
    def waiting(self) -> Collection[Run]:
        """Runs that wait for room, in the order of their submission."""
        return list(self._queue)

    @property
    def capacity(self) -> int:
        """GPUs that are there."""
        return self._cluster.capacity

    @property
    def free(self) -> int:
        """GPUs that nobody has."""
        return self._cluster.free

    def room(self, run: Run) -> int:
        """For how many further workers of this run there is room."""
        return self._cluster.room(run.job.gpus)

    def busy(self, run: Run) -> str | None:
        """Why the run cannot change its size now, in words; None if it can."""
        if run.doing is not Doing.TRAINING:
            return f"it is {run.doing}"
        return observe.busy(run.state, run.progress(self.now), None)

    def ask(self, run: Run, workers: int) -> None:
        """Somebody outside the run asks for so many workers. More than there is room for are not given."""
        possible = min(workers, run.held + self.room(run)) if run.held else workers
        if possible == run.state.target or not run.spec.workers.permits(possible):
            return
        self._tell(run, ev.ScaleRequested(self._at, f"{next(self._numbers)}", possible, ev.AUTOSCALER))
        self._carry_out(run)
        self._admit()

    def requeue(self, run: Run) -> None:
        """The policy would start a waiting run with another number of workers than before."""
        if run in self._queue:
            self._queue.put(run, self._policy.least(run))

    def decided(self, run: Run, decision: Decision, seen: Observation) -> None:
        """The run's own policy has decided."""
        self._tell(run, ScaleDecided(self._at, decision, seen))
        self._carry_out(run)
        self._admit()

    # -- time

    @property
    def _at(self) -> float:
        return EPOCH + self.now

    def _push(self, at: float, kind: int, what: object) -> None:
        heapq.heappush(self._heap, (at, next(self._numbers), kind, what))

    def _timer(self, run: Run, at: float) -> None:
        run.timer += 1
        self._push(at, _TIMER, (run, run.timer))

    def _count(self, now: float) -> None:
        seconds = now - self._counted_at
        if seconds <= 0:
            return
        self._counted_at = now
        free, capacity = self._cluster.free, self._cluster.capacity
        wanted = min(free, max(0, self._demand - (capacity - free)))
        self.idle_while_wanted += wanted * seconds
        self.idle += (free - wanted) * seconds
        self.available += capacity * seconds

    def _happen(self, kind: int, what: object) -> None:
        if kind == _ARRIVE and isinstance(what, Job):
            self._arrive(what)
        elif kind == _TIMER and isinstance(what, tuple):
            run, timer = what
            if run.timer == timer:
                self._due_timer(run)
        elif kind == _NODE_GOES and isinstance(what, Outage):
            self._node_goes(what)
        elif kind == _NODE_COMES and isinstance(what, Outage):
            self._cluster.come(what.node)
            self._changed()
        elif kind == _GATHERED and isinstance(what, Run):
            if what in self._queue:
                self._queue.put(what, self._policy.least(what))
        elif kind == _LOOK and self.now >= self._look_at:
            self._look_at = math.inf
            self.looks += 1
            again = self._policy.look(self)
            if again is not None:
                self._look(max(again, self.now + self._policy.interval))
        self._admit()

    def _changed(self) -> None:
        """Something a policy may care about is different: it looks at the next multiple of its interval."""
        if math.isfinite(interval := self._policy.interval):
            self._look((math.floor(self.now / interval) + 1) * interval)

    def _look(self, at: float) -> None:
        if at < self._look_at:
            self._look_at = at
            self._push(at, _LOOK, None)

    # -- runs

    def _tell(self, run: Run, event: ev.Event) -> None:
        self.events += 1
        run.tell(event)

    def _arrive(self, job: Job) -> None:
        self._demand += job.useful * job.gpus
        run = Run(
            job,
            self._policy.workers(job, self),
            self._policy.own(job),
            self._costs,
            self.now,
            len(self.runs),
            self._in_place,
        )
        self.runs.append(run)
        self._carry_out(run)
        self._changed()

    def _carry_out(self, run: Run) -> None:
        """All actions that are due, up to one that takes time."""
        while actions := due(run.state):
            match actions[0]:
                case act.Submit():
                    self._wait(run)
                    return
                case act.Rejoin():
                    number, home = run.state.attempt.number, run.state.attempts[-2].job
                    self._tell(run, ev.AttemptSubmitted(self._at, number, home or run.spec.name))
                    self._timer(run, run.rejoin(self.now))
                case act.Scale(workers=workers):
                    self._scale(run, workers)
                case act.Delete(grace_seconds=grace):
                    if self._delete(run, grace):
                        return
                case act.Pause(until=until):
                    self._timer(run, until - EPOCH)
                    return
                case act.Finish(outcome=outcome, reason=reason):
                    self._tell(run, ev.RunEnded(self._at, outcome, reason))
                    self._over(run)
                case _:
                    return

    def _wait(self, run: Run) -> None:
        if run.order in self._live:
            del self._live[run.order]
        least = self._policy.least(run)
        if run.spec.scaling_policy is None:
            self._queue.put(run, least)
            return
        count = run.state.attempt.workers
        self._queue.put(run, count)
        if least < count:  # it waits a while for all of its workers
            self._push(self.now + run.spec.workers.gather_seconds, _GATHERED, run)

    def _admit(self) -> None:
        """Start all waiting runs that fit, the earliest first."""
        passed: set[int] = set()
        while self._cluster.free and (run := self._queue.first(self._cluster.free, passed)) is not None:
            room = self.room(run)
            workers = min(self._policy.start(run, room), room)
            if workers <= 0:
                passed.add(run.order)
                continue
            self._queue.remove(run)
            self._start(run, workers)

    def _start(self, run: Run, workers: int) -> None:
        attempt = run.state.attempt
        self._live[run.order] = run
        ready = run.begin(self.now, self._cluster.place(workers, run.job.gpus), self._costs.start)
        others = run.spec.scaling_policy is None
        if others and workers != run.state.target:
            name = f"{next(self._numbers)}"
            self._tell(run, ev.ScaleRequested(self._at, name, workers, ev.AUTOSCALER))
        self._tell(run, ev.AttemptSubmitted(self._at, attempt.number, f"{run.spec.name}-{attempt.number}"))
        if others and workers != attempt.workers:
            self._tell(run, ev.Scaled(self._at, attempt.number, workers))
        elif workers < attempt.workers:
            self._tell(run, ev.Regrouped(self._at, attempt.number, tuple(range(workers))))
        self._timer(run, ready)
        self._changed()

    def _scale(self, run: Run, workers: int) -> None:
        """In place: its workers change, and all ranks start again."""
        gpus = run.job.gpus
        if workers != run.held:
            nodes = dict(run.nodes)
            if workers > run.held:
                for node, more in self._cluster.place(workers - run.held, gpus).items():
                    nodes[node] = nodes.get(node, 0) + more
            else:
                self._cluster.release(taken(nodes, run.held - workers), gpus)
            self._timer(run, run.resize(self.now, nodes))
        self._tell(run, ev.Scaled(self._at, run.state.attempt.number, workers))
        self._changed()

    def _delete(self, run: Run, grace: float) -> bool:
        """Its workers end. Whether that takes time."""
        if run.doing is Doing.LEAVING:
            return True
        if grace and run.held and run.state.attempt.failure is None:
            gone = run.leave(self.now)
            run.scale_steps += run.state.attempt.cause is Cause.SCALE_STEP
            if gone > self.now:
                self._timer(run, gone)
                return True
        self._gone(run)
        return False

    def _gone(self, run: Run) -> None:
        number, progress = run.state.attempt.number, run.progress(self.now)
        self._commit(run)
        self._cluster.release(run.let_go(self.now), run.job.gpus)
        self._tell(run, ev.AttemptGone(self._at, number, progress))
        self._changed()

    def _commit(self, run: Run) -> None:
        """The core learns of the newest checkpoint; older ones change nothing."""
        step = run.saved_step
        if step > run.state.saved_step:
            number = run.state.attempt.number
            self._tell(run, ev.CheckpointCommitted(self._at, number, step, f"{step}"))

    def _due_timer(self, run: Run) -> None:
        match run.doing:
            case Doing.STARTING:
                self._timer(run, run.train(self.now))
                self._changed()
            case Doing.TRAINING:
                run.settle(self.now)
                if run.complete:
                    self._succeed(run)
                elif run.crashes:
                    self._crash(run)
                else:  # rounding
                    self._timer(run, max(run.next_end(self.now), self.now + 1e-3))
            case Doing.LEAVING:
                self._gone(run)
                self._carry_out(run)
            case Doing.WAITING if run.state.attempt.phase is Phase.PAUSED:
                self._tell(run, ev.BackoffElapsed(self._at, run.state.attempt.number))
                self._carry_out(run)
            case _:
                return

    def _succeed(self, run: Run) -> None:
        run.finish()
        self._commit(run)
        number = run.state.attempt.number
        job = evidence.succeeded(run.held)
        self._tell(run, ev.WorkersEnded(self._at, number, job, run.progress(self.now)))
        self._carry_out(run)

    def _crash(self, run: Run) -> None:
        """A process crashes; the agents stay, and start new ranks."""
        progress = run.progress(self.now)
        run.lose(self.now)
        run.crash()
        self._commit(run)
        self._end_attempt(run, evidence.crashed(run.held), progress)

    def _end_attempt(self, run: Run, job: JobStatus, progress: Progress) -> None:
        number = run.state.attempt.number
        self._tell(run, ev.WorkersEnded(self._at, number, job, progress))
        run.timer += 1
        self._carry_out(run)

    def _node_goes(self, outage: Outage) -> None:
        """All workers on the node are lost."""
        self._push(outage.ends, _NODE_COMES, outage)
        self._cluster.leave(outage.node)
        for run in [run for run in self.running if outage.node in run.nodes]:
            lost = run.nodes[outage.node]
            if run.doing is Doing.LEAVING:  # what it has saved is taken to be safe
                run.timer += 1
                self._gone(run)
                self._carry_out(run)
                continue
            progress = run.progress(self.now)
            run.lose(self.now)
            run.restarts += 1
            self._commit(run)
            self._end_attempt(run, evidence.lost(run.held, lost), progress)
        self._changed()

    def _over(self, run: Run) -> None:
        self._live.pop(run.order, None)
        self._queue.remove(run)
        run.end(self.now)
        self._demand -= run.job.useful * run.job.gpus
        self._left -= 1
        self._policy.ended(run)
