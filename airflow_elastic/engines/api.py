"""The engine seam: a small set of capabilities that a controller uses, with no policy in it.

`render` is pure; everything else is thin I/O. All of it is idempotent, because a controller may die after any line and
its successor does the same again: a job that exists is adopted, a job that is gone stays gone. A third party adds an
engine through the entry point group `airflow_elastic.engines` and runs `testing.engine_conformance` against it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from airflow_elastic.adapters import plugins

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from airflow_elastic.spec.run import RunSpec
    from airflow_elastic.spec.status import JobStatus

GROUP = "airflow_elastic.engines"

#: DLRover is the strictest: the Service of an ElasticJob's master is `elasticjob-<name>-dlrover-master`, of 63 letters.
#: (A TrainJob's name may have 47, or its pods hang without a word.)
MAX_JOB_NAME = 37


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt, as an engine gets it.

    Attributes:
        run_uri: where the run lies; the workers write there too.
        spec: the run's specification.
        attempt: number of the attempt.
        workers: workers to start with.
        avoid: machines on which the run has failed too often; an engine of several machines starts nothing there,
        has_elsewhere: or, where this is False, only if there is no other: the run has not seen one.
        suspect: a machine that may have just died: used only where there is no room elsewhere.
        standby: whether agents whose ranks fail tell of it and stand by, for `rejoin`; and go on without a worker that
            is lost, if another one takes its place.
    """

    run_uri: str
    spec: RunSpec
    attempt: int
    workers: int
    avoid: tuple[str, ...] = ()
    has_elsewhere: bool = True
    suspect: str | None = None
    standby: bool = False

    @property
    def name(self) -> str:
        """The same for the same attempt of the same run, and for no other; legal in every engine.

        Letters and digits of the run's name, as many as fit, then a digest of the run URI, then the attempt.
        """
        digest = hashlib.sha256(self.run_uri.encode()).hexdigest()[:10]
        tail = f"{digest}-a{self.attempt}"
        slug = re.sub(r"[^a-z0-9]+", "-", self.spec.name.lower()).strip("-") or "run"
        head = slug[: MAX_JOB_NAME - len(tail) - 1].rstrip("-")
        return f"{head if head[0].isalpha() else 'r' + head[1:]}-{tail}"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do beyond submit, watch and delete.

    Attributes:
        scale_in_place: `scale`.
        regroup: `regroup`, with launchers whose workers can meet anew.
        rejoin: `rejoin`, likewise.
        resize: `resize`.
    """

    scale_in_place: bool = False
    regroup: bool = False
    rejoin: bool = False
    resize: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `airflow-elastic doctor`: what was looked at, whether it is well, and what to do where it is not.

    `needed`: whether it is a fault where it is not well. What nobody has set up is no fault, and cannot be used either.
    `part`: whether the engine can be used without it.
    """

    subject: str
    ok: bool
    text: str
    needed: bool = True
    part: bool = False


class Engine(Protocol):
    """One place where workers can run.

    Errors: `SubmitRefused` where the engine will not take a job; `SubmitHeld` where it takes it later, by itself; any
    other `EngineError` where trying again may help.
    """

    name: str
    capabilities: Capabilities

    def check(self, spec: RunSpec) -> None:
        """Refuse a specification that this engine cannot carry out: raises SpecError. Pure; before anything exists."""
        ...

    def render(self, job: Job) -> dict[str, Any]:
        """What `submit` would send. Pure: the same job gives the same manifest."""
        ...

    async def submit(self, job: Job) -> None:
        """Make the job exist. Adopts one of that name that is ours; refuses one that is not, or that was deleted."""
        ...

    def watch(self, job: Job) -> AsyncIterator[JobStatus]:
        """Full snapshots, the first at once, then after each change. Ends when nothing can change any more."""
        ...

    async def scale(self, job: Job, workers: int) -> None:
        """Change a live job to this number of workers. Only with the capability `scale_in_place`.

        May wait until an earlier step is done; the controller does everything else meanwhile, and may cancel it: then
        it is asked again for what is wanted.
        """
        ...

    async def delete(self, job: Job, grace_seconds: float) -> None:
        """End the job; returns when nothing of it lives, nor can come to life: a late `submit` of it is refused.

        Workers get `grace_seconds` to save first. A job that never existed is deleted like any other.
        """
        ...

    async def close(self, job: Job) -> None:
        """The run has ended with this job: leave nothing behind but what `spec.cleanup` says."""
        ...

    def doctor(self, namespace: str | None = None) -> list[Finding]:
        """What this machine, or this connection, can do and what is missing.

        `namespace` is the one that rights are asked for, where rights are given by namespace; None: the engine's own.
        """
        ...


class Regrouping(Engine, Protocol):
    """An engine with the capability `regroup`: it may have room for some of a job's workers only."""

    async def regroup(self, job: Job, members: tuple[int, ...]) -> None:
        """Have these workers of a live job meet anew; the others join when they are named, too."""
        ...


class Rejoining(Engine, Protocol):
    """An engine with the capability `rejoin`: its agents can outlive their ranks."""

    async def rejoin(self, job: Job, attempt: int, lost: tuple[int, ...] = ()) -> None:
        """Have the workers of a live job meet anew, for this attempt. Nothing where they have, or the job is gone.

        Their agents end what is left of the attempt before, and see that what it has saved is written. New workers take
        the places of those that are `lost`, of which nothing may be left that could take part: only workers that the
        engine has told to be `replaceable` are.

        Raises:
            SubmitRefused: it will never be done. The job is deleted then, and the next attempt has its own.
        """
        ...


class Outcome(StrEnum):
    """What has come of a change to a running worker."""

    DONE = "done"
    DEFERRED = "deferred"  # it is asked for, and will be done without being asked for again
    REFUSED = "refused"  # nothing has changed, nor will


@dataclass(frozen=True, slots=True)
class Resized:
    """What has come of it for one worker, and why where it is not done."""

    worker: str
    outcome: Outcome
    reason: str | None = None


class Resizing(Engine, Protocol):
    """An engine with the capability `resize`: what its workers may use can change while they run."""

    async def resize(self, job: Job, resources: Mapping[str, str]) -> tuple[Resized, ...]:
        """Give each worker of a live job so much of these resources, e.g. `{"memory": "64Gi"}`, and restart none.

        A worker that comes later begins with what the job says. Returns one entry for each worker that is there.
        """
        ...


def engine_names() -> list[str]:
    """The names of all engines that are installed."""
    return plugins.names(GROUP)


def find_engine(name: str) -> Engine:
    """A new instance of the engine of that name, or of the class that `module:Class` names.

    Raises:
        SpecError: there is none; says which there are.
    """
    engine: Engine = plugins.load(GROUP, name, "engine")()
    return engine
