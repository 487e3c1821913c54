"""A world in which controllers are killed between any two lines: a journal, an engine, and luck.

The controllers here take the real machine's word for everything and do what `control.controller` does, in steps small
enough to be interleaved: decide, act on the engine, append. In between anything may happen: they die, another one is
faster, a worker dies, news arrives late or twice. The history is checked after every step.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from airflow_elastic.core.machine import create, due, evolve
from airflow_elastic.core.state import Phase, RunState
from airflow_elastic.spec import actions as act
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
from airflow_elastic.spec.status import JobStatus, RankError, WorkerPhase, WorkerStatus
from tests.support.builders import at_step, failed, lost


@dataclass
class Attempt:
    """What really is of an attempt: the engine's side and the workers'."""

    workers: int
    live: bool = True
    closed: bool = False
    ending: JobStatus | None = None
    step: int = 0
    serves: int = 0  # a later attempt that has begun in its place, in the same job


@dataclass
class Controller:
    """One controller: what it has read, and what it is in the middle of."""

    state: RunState | None = None
    seq: int = 0
    doing: act.Action | None = None
    done: ev.Event | None = None
    news: list[ev.Event] = field(default_factory=list)  # observed, but not journaled yet: may grow old


class World:
    """One random schedule."""

    def __init__(self, seed: int) -> None:
        self.luck = random.Random(seed)
        policy = self.luck.choice(["OnFailure", "OnFailure", "Never", "ExitCode", "Always"])
        self.spec = RunSpec(
            command=("train.py",),
            workers=Workers(2, min=1, max=4),
            restart=RestartPolicy(policy=policy, backoff_limit=self.luck.randint(0, 5) or 1),
            active_deadline_seconds=1e6,
        )
        in_place = self.luck.random() < 0.5
        self.journal: list[ev.Event] = [
            ev.RunCreated(0.0, self.spec, scales_in_place=in_place, owner="first")
        ]
        self.truth = create(self.journal[0])  # what the journal says, kept beside it
        self.attempts: dict[int, Attempt] = {}
        self.committed: list[int] = []
        self.wrote: dict[int, int] = {}  # the attempt of each
        self.controllers = [Controller() for _ in range(self.luck.randint(1, 3))]
        self.clock = 0.0

    # -- what can happen -----------------------------------------------------------------------------------------

    def turn(self, *, calm: bool = False) -> None:
        """Let one thing happen: chosen by luck, or with `calm` nothing bad any more."""
        self.clock += self.luck.random() * 10
        controller = self.luck.choice(self.controllers)
        chance = 1.0 if calm else self.luck.random()
        if chance < 0.06:
            self._kill(controller)
        elif chance < 0.25:
            self._fate()
        elif chance < 0.32:
            self._wish(controller)
        else:
            self._advance(controller)
        if calm:
            self._fate(bad=False)
        self._check()

    def _kill(self, controller: Controller) -> None:
        self.controllers[self.controllers.index(controller)] = Controller()

    def _fate(self, *, bad: bool = True) -> None:
        """Something happens to the workers of a live attempt."""
        live = [
            (number, attempt)
            for number, attempt in self.attempts.items()
            if attempt.live and not attempt.ending
        ]
        if not live:
            return
        number, attempt = self.luck.choice(live)
        attempt.step += self.luck.randint(0, 3)
        match self.luck.randint(0, 10 if bad else 3):
            case 0 | 1:
                self._commit(number, attempt)
            case 2 | 3:
                if self.luck.random() < (0.1 if bad else 0.7):
                    attempt.ending = _all(attempt.workers, WorkerPhase.SUCCEEDED)
            case 4:
                attempt.ending = lost()
            case 5:
                attempt.ending = failed(self.luck.choice([1, 2, 137, 138]))
            case 6:
                attempt.ending = JobStatus((WorkerStatus("node-0", WorkerPhase.LOST, preempted=True),))
            case 7 | 8:  # its agents are still there, and can start new ranks
                away = JobStatus((WorkerStatus("node-0", WorkerPhase.RUNNING), _killed()))
                attempt.ending = away
            case 9:  # another one can take its place
                gone = WorkerStatus("node-1", WorkerPhase.LOST, replaceable=True)
                attempt.ending = JobStatus((WorkerStatus("node-0", WorkerPhase.RUNNING), gone))
            case _:
                pass

    def _commit(self, number: int, attempt: Attempt) -> None:
        """An attempt commits where no newer one has begun: that is what the fence is for."""
        step = max([0, *self.committed]) + attempt.step
        if number == max(self.attempts) and attempt.step and step not in self.committed:
            self.committed.append(step)
            self.wrote[step] = max(number, attempt.serves)

    def _wish(self, controller: Controller) -> None:
        """Somebody asks for something, or the clock does; a controller reads it, and may read it twice."""
        request = f"r{self.luck.randint(0, 5)}"
        wish: ev.Event = self.luck.choice(
            [
                ev.ScaleRequested(self.clock, request, self.luck.randint(0, 6), "somebody"),
                ev.SaveRequested(self.clock, request, "somebody"),
                ev.StopRequested(self.clock, request, "on_kill", owner="first"),
                ev.OwnerChanged(self.clock, self.luck.choice(["first", "second"])),
                ev.MachineExcluded(self.clock, request, "m1", "somebody", self.luck.random() < 0.5),
                *([ev.ResumeRequested(self.clock, request, step, "somebody") for step in self.committed[:1]]),
                *([ev.StopRequested(self.clock, request, "somebody")] if self.luck.random() < 0.1 else []),
                *([ev.DeadlinePassed(self.clock)] if self.luck.random() < 0.1 else []),
            ]
        )
        controller.news.append(wish)
        if self.luck.random() < 0.3:
            controller.news.append(wish)

    # -- what a controller does ------------------------------------------------------------------------------------

    def _advance(self, controller: Controller) -> None:
        """One small step of one controller."""
        if controller.state is None:
            self._read(controller)
        elif controller.done is not None:
            self._append(controller, controller.done)
            controller.doing = controller.done = None
        elif controller.doing is not None:
            controller.done = self._act(controller.doing, controller.state)
            if controller.done is None:
                controller.doing = None
        elif controller.news and self.luck.random() < 0.5:
            self._append(controller, controller.news.pop(self.luck.randrange(len(controller.news))))
        elif actions := due(controller.state):
            controller.doing = actions[0]
        else:
            self._read(controller)
            self._observe(controller)

    def _read(self, controller: Controller) -> None:
        state = controller.state
        if controller.seq != len(self.journal):  # a list of checkpoints is looked at at once, or not at all
            controller.news = [
                news for news in controller.news if not isinstance(news, ev.CheckpointCommitted)
            ]
        for event in self.journal[controller.seq :]:
            state = create(event) if state is None else evolve(state, event)
        controller.state, controller.seq = state, len(self.journal)

    def _append(self, controller: Controller, event: ev.Event) -> None:
        """Compare and append, as adapters.journal does."""
        assert controller.state is not None
        state = evolve(controller.state, event)
        if state == controller.state:
            return
        if controller.seq != len(self.journal):  # somebody was faster
            self._read(controller)
            return
        if isinstance(event, ev.NewerSetAside):
            controller.news.clear()
        self.journal.append(event)
        self.truth = evolve(self.truth, event)
        controller.state, controller.seq = state, controller.seq + 1

    def _act(self, action: act.Action, state: RunState) -> ev.Event | None:
        """What the engine does, and what the controller makes of the answer. The state may be long out of date."""
        match action:
            case act.Submit(number, workers):
                attempt = self.attempts.setdefault(number, Attempt(workers))
                return None if attempt.closed else ev.AttemptSubmitted(self.clock, number, f"job-a{number}")
            case act.Rejoin(number):
                home = state.attempts[number - 1].home
                assert home is not None
                attempt = self.attempts[home]
                if attempt.serves < number and self.luck.random() < 0.2:
                    return ev.RejoinRefused(self.clock, number, "no such size")
                if attempt.serves < number and not attempt.closed:
                    # What was in memory of the agents is committed before anything new starts.
                    self._commit(home, attempt)
                    attempt.serves, attempt.ending = number, None
                return ev.AttemptSubmitted(self.clock, number, f"job-a{home}")
            case act.Scale(number, workers):
                home = state.attempts[number - 1].home or number
                attempt = self.attempts.setdefault(home, Attempt(workers, live=False, closed=True))
                if attempt.closed or self.luck.random() < 0.2:
                    return ev.ScaleFailed(self.clock, number, workers, "no capacity")
                attempt.workers = workers
                return ev.Scaled(self.clock, number, workers)
            case act.OrderSave(number, request):
                return ev.SaveOrdered(self.clock, number, request)
            case act.SetNewerAside(number, step):
                aside = [newer for newer in self.committed if newer > step and self.wrote[newer] < number]
                self.committed = [kept for kept in self.committed if kept not in aside]
                return ev.NewerSetAside(self.clock, number, step, tuple(aside))
            case act.Delete(number, _):
                home = state.attempts[number - 1].home or number
                attempt = self.attempts.setdefault(home, Attempt(0))
                attempt.live, attempt.closed = False, True
                return ev.AttemptGone(self.clock, number, at_step(attempt.step, attempt=number))
            case act.Pause(number, _):
                return ev.BackoffElapsed(self.clock, number)
            case act.Finish(outcome, reason):
                return ev.RunEnded(self.clock, outcome, reason)

    def _observe(self, controller: Controller) -> None:
        """Look at workers and checkpoints; what is seen is journaled later, when it may be wrong already."""
        assert controller.state is not None
        if self.committed and self.luck.random() < 0.8:
            step, number = max(self.committed), controller.state.attempt.number
            controller.news.append(ev.CheckpointCommitted(self.clock, number, step, f"k{step}"))
        mine = controller.state.attempt
        attempt = self.attempts.get(mine.home or mine.number)
        if attempt is not None and attempt.ending is not None and mine.number >= attempt.serves:
            seen = ev.WorkersEnded(self.clock, mine.number, attempt.ending)
            controller.news += [seen] * self.luck.randint(1, 2)

    # -- what must hold ------------------------------------------------------------------------------------------

    def _check(self) -> None:
        live = [number for number, attempt in self.attempts.items() if attempt.live]
        assert len(live) <= 1, f"attempts {live} live at once"
        state = self.truth
        alive = [a.number for a in state.attempts if a.phase in (Phase.SUBMITTING, Phase.LIVE, Phase.ENDING)]
        assert len(alive) <= 1, f"the journal has attempts {alive} at once"
        assert state.restarts_used <= self.spec.restart.backoff_limit
        free = sum(
            a.cause is not None and str(a.cause) in ("scale step", "preemption") for a in state.attempts
        )
        free += len(state.resumes)
        # The second one that is lost is the first one's restart; for which an attempt was to begin in place.
        together = sum(bool(a.replaces) and a.failure is not None for a in state.attempts)
        assert len(state.attempts) <= 1 + state.restarts_used + free + min(together, state.restarts_used)
        assert 1 <= state.target <= 4
        if state.ended:
            assert not live, f"attempt {live} lives after the last word"

    @property
    def ended(self) -> bool:
        """Whether the last word is written."""
        return self.truth.ended


def _killed() -> WorkerStatus:
    error = RankError(rank=1, signal=9)
    return WorkerStatus("node-1", WorkerPhase.FAILED, errors=(error,), standby=True)


def _all(workers: int, phase: WorkerPhase) -> JobStatus:
    return JobStatus(tuple(WorkerStatus(f"node-{i}", phase) for i in range(workers)))
