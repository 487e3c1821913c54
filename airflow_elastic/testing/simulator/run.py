"""One run: its state in the core, and what its workers do meanwhile.

The core gets the same events that a controller journals. Between two of them nothing is computed: a run trains at
one speed until something happens to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_elastic.core.machine import create, evolve
from airflow_elastic.core.state import RunState
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.events import Event
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
from airflow_elastic.spec.scaling.observation import Speed
from airflow_elastic.spec.scaling.policy import ScalingPolicy
from airflow_elastic.spec.status import Progress, Stretch
from airflow_elastic.testing.simulator.costs import Costs
from airflow_elastic.testing.simulator.traces.trace import Job

#: Virtual time begins at this epoch second: a moment that windows and deadlines can be read from.
EPOCH = 1_700_000_000.0

#: A run may restart so often before its budget is used up.
RESTARTS = 1000


class Doing(StrEnum):
    """What the workers of a run do."""

    WAITING = "waiting"  # for room; it holds none
    STARTING = "starting"
    TRAINING = "training"
    LEAVING = "leaving"  # saving, before they are removed
    ENDED = "ended"


@dataclass(slots=True)
class Account:
    """GPU seconds that a run held, by what they were spent on. `training` counts steps that were kept."""

    training: float = 0.0
    repeated: float = 0.0
    saving: float = 0.0
    starting: float = 0.0
    leaving: float = 0.0

    @property
    def held(self) -> float:
        """All of them."""
        return self.training + self.repeated + self.saving + self.starting + self.leaving


class Run:
    """One run of a trace.

    Args:
        job: of the trace. Its curve and its crashes are what happens, and not for policies to see.
        workers: how many it begins with, and its limits.
        policy: of its own scaling; None: others ask for steps.
        costs: of starts, saves and steps.
        at: now, virtual seconds.
        order: of submission.
        in_place: whether a live job can change its workers.
    """

    def __init__(
        self,
        job: Job,
        workers: Workers,
        policy: ScalingPolicy | None,
        costs: Costs,
        at: float,
        order: int,
        in_place: bool = True,
    ) -> None:
        elastic = policy is not None and workers.at_least < workers.at_most
        spec = RunSpec(
            ("train.py",),
            name=f"run-{order}",
            workers=workers,
            restart=RestartPolicy(backoff_limit=RESTARTS),
            scaling_policy=policy if elastic else None,
        )
        self.job, self.order, self._costs = job, order, costs
        self.state: RunState = create(ev.RunCreated(EPOCH + at, spec, in_place))
        self.doing = Doing.WAITING
        self.nodes: dict[int, int] = {}
        self.held = 0
        self.account = Account()
        self.first_start: float | None = None
        self.ended_at: float | None = None
        self.scale_steps = 0
        self.restarts = 0
        self.timer = 0
        self.speeds_known: dict[int, tuple[float, int]] = {}
        self._crashes = iter(job.crashes)
        self._until_crash = next(self._crashes, float("inf"))
        self._since = at
        self._step = self._saved = self._from_step = 0.0
        self._trained = 0.0
        self._begun_at = at
        self._first_step_at: float | None = None
        self._stepping = self._saving = 0.0
        self._stretches: list[Stretch] = []
        self._open = False

    # -- what is known of it

    @property
    def spec(self) -> RunSpec:
        """Its specification."""
        return self.state.spec

    @property
    def size(self) -> int:
        """The workers that it trains or starts with; 0 while it waits for room."""
        return self.held

    @property
    def steps_left(self) -> int:
        """Steps until its end."""
        return max(0, self.job.steps - int(self._step))

    @property
    def waits(self) -> bool:
        """Whether it waits for room to start."""
        return self.doing is Doing.WAITING

    def speeds(self, now: float) -> tuple[Speed, ...]:
        """What was measured so far, one for each number of workers."""
        self.settle(now)
        known = dict(self.speeds_known)
        if self._open:
            _add(known, self.held, self._stepping, int(self._step) - int(self._from_step))
        return tuple(Speed(size, seconds / steps, steps) for size, (seconds, steps) in sorted(known.items()))

    def progress(self, now: float) -> Progress:
        """The report of its current attempt."""
        self.settle(now)
        stretches = tuple(self._stretches)
        if self._open:
            stretches = (*stretches, self._stretch())
        step = int(self._step)
        return Progress(
            attempt=self.state.attempt.number,
            at=EPOCH + now,
            step=step,
            total_steps=self.job.steps,
            attached=True,
            finished=step >= self.job.steps,
            saved=int(self._saved),
            stretches=stretches,
        )

    # -- what happens to it

    def tell(self, event: Event) -> None:
        """The core learns of an event."""
        self.state = evolve(self.state, event)

    def settle(self, now: float) -> None:
        """Count the time since it was last counted."""
        seconds = now - self._since
        if seconds <= 0:
            return
        self._since = now
        gpus = seconds * self.held * self.job.gpus
        match self.doing:
            case Doing.STARTING:
                self.account.starting += gpus
            case Doing.LEAVING:
                self.account.leaving += gpus
            case Doing.TRAINING:
                stepping = seconds * self._costs.training
                self._stepping += stepping
                self._saving += seconds - stepping
                self.account.training += gpus * self._costs.training
                self.account.saving += gpus * (1.0 - self._costs.training)
                self._trained += seconds
                self._until_crash -= seconds * self.held
                speed = self.job.curve.step_seconds(self.held)
                self._step = min(self._step + stepping / speed, float(self.job.steps))
                every = self._costs.save_every
                saves = int(self._trained * self._costs.training / every + 1e-9)
                if saves:
                    self._saved = max(self._saved, self._from_step + saves * every / speed)

    def begin(self, now: float, nodes: dict[int, int], seconds: float) -> float:
        """Its workers have room on these nodes, and start. Returns when they are ready."""
        self.settle(now)
        self._close()
        self._hold(nodes)
        self.doing = Doing.STARTING
        self._begun_at, self._first_step_at = now, None
        self._from_step = self._step
        self._stepping = self._saving = self._trained = 0.0
        self._open = True
        if self.first_start is None:
            self.first_start = now
        return now + seconds

    def rejoin(self, now: float) -> float:
        """The agents start the ranks of a new attempt in the same job. Returns when they are ready."""
        self.settle(now)
        self._close()
        self._stretches = []
        return self.begin(now, self.nodes, self._costs.rejoin)

    def resize(self, now: float, nodes: dict[int, int]) -> float:
        """In place, its ranks start again with workers on these nodes. What they had in memory is kept."""
        self.settle(now)
        if self.doing is Doing.TRAINING:
            self._saved = self._step
        self.scale_steps += 1
        return self.begin(now, nodes, self._costs.scale)

    def train(self, now: float) -> float:
        """Its first step begins. Returns when its training is over, or when it crashes."""
        self.settle(now)
        self.doing = Doing.TRAINING
        self._first_step_at = now
        return self.next_end(now)

    def next_end(self, now: float) -> float:
        """When it is complete or crashes, if nothing else happens."""
        left = (self.job.steps - self._step) * self.job.curve.step_seconds(self.held) / self._costs.training
        return now + min(left, self._until_crash / self.held)

    @property
    def crashes(self) -> bool:
        """Whether a crash is due."""
        return self._until_crash <= 1e-6

    @property
    def complete(self) -> bool:
        """Whether all steps are done."""
        return self._step >= self.job.steps - 1e-6

    def finish(self) -> int:
        """All steps are done and saved: the last one."""
        self._step = self._saved = float(self.job.steps)
        return self.job.steps

    def crash(self) -> None:
        """The next crash is drawn."""
        self._until_crash = next(self._crashes, float("inf"))
        self.restarts += 1

    def lose(self, now: float) -> None:
        """What is not saved is lost: these steps will be repeated."""
        self.settle(now)
        if self.doing is Doing.TRAINING and self._step > self._saved:
            lost = (self._step - self._saved) * self.job.curve.step_seconds(self.held)
            lost *= self.held * self.job.gpus
            self.account.training -= lost
            self.account.repeated += lost
        self._close()
        self._step = self._saved

    def leave(self, now: float) -> float:
        """Its workers save what they have, and end. Returns when they are gone."""
        self.settle(now)
        worth = self.doing is Doing.TRAINING and self._step > self._saved
        self._close()
        if worth:
            self._saved = self._step
        self.doing = Doing.LEAVING
        return now + (self._costs.leave if worth else 0.0)

    def let_go(self, now: float) -> dict[int, int]:
        """Its room, which it gives back."""
        self.settle(now)
        self._close()
        nodes, self.nodes, self.held = self.nodes, {}, 0
        self.doing = Doing.WAITING
        self._stretches = []
        return nodes

    def end(self, now: float) -> None:
        """It is over."""
        self.doing, self.ended_at = Doing.ENDED, now

    @property
    def saved_step(self) -> int:
        """The step of what is saved."""
        return int(self._saved)

    @property
    def kept(self) -> float:
        """Steps that count so far."""
        return self._step

    # -- inside

    def _hold(self, nodes: dict[int, int]) -> None:
        self.nodes, self.held = nodes, sum(nodes.values())

    def _stretch(self) -> Stretch:
        stepped = self.doing is not Doing.STARTING and self._first_step_at is not None
        return Stretch(
            generation=len(self._stretches) + 1,
            world_size=self.held,
            workers=self.held,
            started_at=EPOCH + self._begun_at,
            first_step_at=EPOCH + self._first_step_at
            if stepped and self._first_step_at is not None
            else None,
            last_step_at=EPOCH + self._since if stepped else None,
            from_step=int(self._from_step),
            to_step=int(self._step) if stepped else int(self._from_step),
            stepping_seconds=self._stepping,
            saving_seconds=self._saving,
        )

    def _close(self) -> None:
        """The current set of ranks is over: what it has measured is kept."""
        if not self._open:
            return
        self._open = False
        self._stretches.append(self._stretch())
        _add(self.speeds_known, self.held, self._stepping, int(self._step) - int(self._from_step))


def _add(known: dict[int, tuple[float, int]], size: int, seconds: float, steps: int) -> None:
    if steps >= 5:
        before = known.get(size, (0.0, 0))
        known[size] = before[0] + seconds, before[1] + steps
