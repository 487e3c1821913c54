"""The engine interface: a small set of capabilities that a controller uses, without any policy.

`render` is pure; everything else is thin I/O. All methods are idempotent. A controller may die after any line, and its
successor repeats the call. A job that exists is adopted; a job that is gone stays gone. Another package adds an engine
through the entry point group `airflow_elastic.engines`, and runs `testing.engine_conformance` against it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from airflow_elastic.adapters import plugins

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping

    from airflow_elastic.spec.models.start import Origin
    from airflow_elastic.spec.run import RunSpec
    from airflow_elastic.spec.scaling.observation import Capacity
    from airflow_elastic.spec.status import JobStatus

GROUP = "airflow_elastic.engines"

#: The Service of an ElasticJob's master has the strictest limit: `elasticjob-<name>-dlrover-master`, of 63 letters.
#: (A TrainJob's name may have 47 letters; with more its pods hang silently.)
MAX_JOB_NAME = 37


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt, as an engine gets it.

    Attributes:
        run_uri: where the run is stored; the workers write there too.
        spec: the run's specification.
        attempt: number of the attempt.
        workers: workers to start with.
        avoid: machines on which the run has failed too often, or that a person has excluded. An engine with several
            machines starts nothing there.
        has_elsewhere: whether the run has used other machines. If not, those of `avoid` are used when there is no
            other.
        suspect: a machine that may have just died: it is used only if there is no room elsewhere.
        origin: the weights that ranks begin with, as long as the run has no checkpoint; None: from scratch.
        standby: for `rejoin`: whether agents whose ranks fail report it and stand by. They also go on without a lost
            worker, if another one takes its place.
    """

    run_uri: str
    spec: RunSpec
    attempt: int
    workers: int
    avoid: tuple[str, ...] = ()
    has_elsewhere: bool = True
    suspect: str | None = None
    standby: bool = False
    origin: Origin | None = None

    @property
    def name(self) -> str:
        """The same for the same attempt of the same run, and for no other; valid in every engine.

        Letters and digits of the run's name, as many as fit, then a digest of the run URI, then the attempt.
        """
        digest = hashlib.sha256(self.run_uri.encode()).hexdigest()[:10]
        tail = f"{digest}-a{self.attempt}"
        slug = re.sub(r"[^a-z0-9]+", "-", self.spec.name.lower()).strip("-") or "run"
        head = slug[: MAX_JOB_NAME - len(tail) - 1].rstrip("-")
        return f"{head if head[0].isalpha() else 'r' + head[1:]}-{tail}"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The optional features of an engine.

    Attributes:
        scale_in_place: `scale`.
        regroup: `regroup`, with launchers whose workers can hold a new rendezvous.
        rejoin: `rejoin`, with the same launchers.
        resize: `resize`.
        exclude: `Job.avoid`: there are several machines, and a job can avoid some.
        standby: `stand_by`.
    """

    scale_in_place: bool = False
    regroup: bool = False
    rejoin: bool = False
    resize: bool = False
    exclude: bool = False
    standby: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `airflow-elastic doctor`: the check, its result, and advice if it failed.

    `needed`: whether a failure counts. Something that nobody has set up is no failure, but cannot be used either.
    `part`: whether the engine can be used without it.
    """

    subject: str
    ok: bool
    text: str
    needed: bool = True
    part: bool = False


class Engine(Protocol):
    """One place where workers can run.

    Errors: `SubmitRefused` if the engine refuses a job. `SubmitHeld` if it will take the job later without any change.
        Any
    other `EngineError` if trying again may help.
    """

    name: str
    capabilities: Capabilities

    def check(self, spec: RunSpec) -> None:
        """Raise SpecError if this engine cannot carry the specification out. Pure; called before any creation."""
        ...

    def render(self, job: Job) -> dict[str, Any]:
        """The objects that `submit` would send. Pure: the same job gives the same manifest."""
        ...

    async def submit(self, job: Job) -> None:
        """Create the job. Adopts an existing job of this run; refuses one of another run, or one that was deleted."""
        ...

    def watch(self, job: Job) -> AsyncIterator[JobStatus]:
        """Full snapshots, the first at once, then after each change. Ends when nothing can change any more."""
        ...

    async def scale(self, job: Job, workers: int) -> None:
        """Change a live job to this number of workers. Only with the capability `scale_in_place`.

        It may wait until an earlier step is done. The controller does other things meanwhile, and may cancel it. Then
        it is called again with the wanted number.
        """
        ...

    async def delete(self, job: Job, grace_seconds: float) -> None:
        """End the job; returns when no part of it runs any more, or can start again: a late `submit` of it is refused.

        Workers get `grace_seconds` to save first. A job that never existed is deleted in the same way.
        """
        ...

    async def close(self, job: Job) -> None:
        """The run has ended with this job: remove everything except what `spec.cleanup` keeps."""
        ...

    def doctor(self, namespace: str | None = None) -> list[Finding]:
        """The features of this machine or connection, and what is missing.

        `namespace`: where rights are checked, if rights are given by namespace; None: the engine's own namespace.
        """
        ...


@runtime_checkable
class RemoteEngine(Protocol):
    """An engine whose workers may not see the place where a run is stored."""

    def storage_problem(self, job: Job) -> str | None:
        """Why workers cannot see the run's place; None if they can. Pure; called before any creation."""
        ...


#: What may limit the room for workers: what is free on machines, quotas of the namespace, and the quota of the queue.
ROOM_LIMITS = ("nodes", "quotas", "queue")


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit.

    Attributes:
        name: such as `nodes` or `cpu`.
        workers: for how many it has room now.
        text: the limit in words.
    """

    name: str
    workers: int
    text: str


@dataclass(frozen=True, slots=True)
class Room:
    """How many workers of a specification fit now. Others may take the room before a run is submitted."""

    limits: tuple[Limit, ...]

    @property
    def workers(self) -> int | None:
        """The smallest number of all limits; None if nothing limits them."""
        return min((limit.workers for limit in self.limits), default=None)

    def __str__(self) -> str:
        lines = [f"{limit.workers} by {limit.name} ({limit.text})" for limit in self.limits]
        return "; ".join(lines) or "nothing limits the workers"


@runtime_checkable
class MeasuresRoom(Protocol):
    """An engine that knows how much room there is."""

    async def room(self, spec: RunSpec, limits: Collection[str] = ROOM_LIMITS) -> Room:
        """How many workers of this specification fit now, beside all that runs. Nothing is reserved.

        Raises:
            InvalidInput: the engine has no such queue, or no such resource.
            EngineError: it cannot be found out.
        """
        ...


@runtime_checkable
class MeasuresCapacity(Protocol):
    """An engine that knows the free room for a run, and who waits for room that the run has."""

    async def capacity(self, job: Job) -> Capacity:
        """The room for further workers of this job beside all that runs, and the claims of others on its own.

        Many runs may ask at once, each at its own interval; the engine reads its cluster once for all of them. If a
        right is missing, `free` is None, and the text names the right.

        Raises:
            EngineError: it cannot be found out now.
        """
        ...


class Regrouping(Engine, Protocol):
    """An engine with the capability `regroup`: it may have room for only some of a job's workers."""

    async def regroup(self, job: Job, members: tuple[int, ...]) -> None:
        """Let these workers of a live job hold a new rendezvous; the others join when a later call names them."""
        ...


class Rejoining(Engine, Protocol):
    """An engine with the capability `rejoin`: its agents can outlive their ranks."""

    async def rejoin(self, job: Job, attempt: int, lost: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Let the workers of a live job hold a new rendezvous for this attempt. Nothing if they have, or the job is
        gone.

        Their agents end the ranks of the previous attempt, and write what it has saved. New workers take the places of
        the `lost` ones, which must not be able to take part any more. They are workers that the engine reports as
        `replaceable`, or one that runs and says nothing, where a standby worker is ready.

        Returns:
            The numbers of these new workers; () if none are known.

        Raises:
            SubmitRefused: it cannot be done. The job is then deleted, and the next attempt has its own.
        """
        ...


class StandingBy(Rejoining, Protocol):
    """An engine with the capability `standby`: it can have more workers than train. See `Workers.standby`.

    `JobStatus.standby_workers` has them. `rejoin` and `scale` name those first that run.
    """

    async def stand_by(self, job: Job) -> tuple[int, ...]:
        """Ask for standby workers up to `job.spec.workers.standby`, in place of those that train now, or were lost.

        Returns:
            The numbers of the new ones. They start when there is room for them, and nothing waits for it. () if there
            are enough, or the job is gone.

        Raises:
            EngineError: it cannot be done now.
        """
        ...


class Outcome(StrEnum):
    """The result of a change to a running worker."""

    DONE = "done"
    DEFERRED = "deferred"  # requested; it will be done without another request
    REFUSED = "refused"  # nothing has changed, or will change


@dataclass(frozen=True, slots=True)
class Resized:
    """The result for one worker, with the reason if it is not done."""

    worker: str
    outcome: Outcome
    reason: str | None = None


class Resizing(Engine, Protocol):
    """An engine with the capability `resize`: the resources of its workers can change while they run."""

    async def resize(self, job: Job, resources: Mapping[str, str]) -> tuple[Resized, ...]:
        """Give each worker of a live job these resources, e.g. `{"memory": "64Gi"}`, without a restart.

        A worker that comes later begins with the job's own resources. Returns one entry for each existing worker.
        """
        ...


def engine_names() -> list[str]:
    """The names of all installed engines."""
    return plugins.names(GROUP)


def find_engine(name: str) -> Engine:
    """A new instance of the engine with this name, or of the class at `module:Class`.

    Raises:
        SpecError: there is none; the text lists the installed engines.
    """
    engine: Engine = plugins.load(GROUP, name, "engine")()
    return engine
