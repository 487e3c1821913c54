"""An engine whose jobs exist in this process's memory only: for tests of what is above an engine, and for load tests.

It keeps every promise of the protocol, so it passes the conformance suite. What its workers do is said from outside, by
`end_worker`, `hold`, `release` and `finish`, or by engine options. `seconds`: a job succeeds by itself after so long.
`waiting`: its workers wait so from the first, e.g. `queued`, until they are released. `capacity`: the answer of
`capacity`, as a mapping with `free`, `claims` and `text`. Or the path of a JSON file with one, read at each look.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from airflow_elastic.engines.api import Capabilities, Finding, Job
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import EngineError, Problem, SpecError, SubmitRefused
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.scaling.observation import Capacity
from airflow_elastic.spec.status import JobStatus, Waiting, WorkerPhase, WorkerStatus

_OPTIONS = ("seconds", "waiting", "capacity")
_LIVE = (WorkerPhase.PENDING, WorkerPhase.RUNNING)


@dataclass
class FakeJob:
    """One job: its workers, and whether anything may still start in it."""

    digest: str
    workers: list[WorkerStatus] = field(default_factory=list)
    closed: bool = False
    started: int = 0
    met: list[tuple[int, ...]] = field(default_factory=list)  # the workers of each `regroup`
    rejoined: list[int] = field(default_factory=list)  # the attempts of each `rejoin`
    standby: list[WorkerStatus] = field(default_factory=list)
    waiting: Waiting | None = None
    ends_at: float | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def live(self) -> bool:
        """Whether any worker of it runs, or is to."""
        return any(worker.phase in _LIVE for worker in self.workers)


class FakeEngine:
    """Jobs by name, shared by all instances of one process as a cluster is by all its clients."""

    name = "fake"
    capabilities = Capabilities(scale_in_place=True, regroup=True, rejoin=True, standby=True)
    jobs: ClassVar[dict[str, FakeJob]] = {}
    #: By run URI; changed by `set_capacity`.
    capacities: ClassVar[dict[str, Capacity]] = {}

    def check(self, spec: RunSpec) -> None:
        """Refuse other options than those of this module."""
        for option, value in spec.engine_options.items():
            if option not in _OPTIONS:
                raise SpecError(Problem(f"engine_options.{option}", value, ", ".join(_OPTIONS)))
            if option == "waiting" and value not in list(Waiting):
                raise SpecError(Problem(f"engine_options.{option}", value, " or ".join(Waiting)))
            if option == "capacity" and not isinstance(value, Mapping | str):
                raise SpecError(
                    Problem(f"engine_options.{option}", value, "a mapping, or the path of a file")
                )

    def render(self, job: Job) -> dict[str, Any]:
        """The job's name, workers and specification."""
        plain: dict[str, Any] = encode({"name": job.name, "workers": job.workers, "spec": job.spec})
        return plain

    async def submit(self, job: Job) -> None:
        """Start the job's workers, once."""
        found = self.jobs.get(job.name)
        if found is None:
            seconds = job.spec.engine_options.get("seconds")
            found = FakeJob(job.spec.digest, ends_at=None if seconds is None else time.monotonic() + seconds)
            waiting = job.spec.engine_options.get("waiting")
            found.waiting = None if waiting is None else Waiting(waiting)
            self.jobs[job.name] = found
            self._resize(found, job.workers)
        elif found.closed:
            raise EngineError(f"job {job.name} has been deleted: it is not started again")
        elif found.digest != job.spec.digest:
            raise SubmitRefused(f"{job.name} is another job: it is left alone")

    async def watch(self, job: Job) -> AsyncIterator[JobStatus]:
        """Snapshots until all workers have ended."""
        last: JobStatus | None = None
        while True:
            found = self.jobs.get(job.name)
            if found is not None and found.ends_at is not None and time.monotonic() >= found.ends_at:
                self.finish(job.name)
            status = JobStatus()
            if found is not None:
                status = JobStatus(tuple(found.workers), standby_workers=tuple(found.standby))
            if status != last:
                last = status
                yield status
            if found is None or not found.live:
                return
            found.changed.clear()
            wait = None if found.ends_at is None else max(0.0, found.ends_at - time.monotonic())
            try:
                async with asyncio.timeout(wait):
                    await found.changed.wait()
            except TimeoutError:
                continue

    async def scale(self, job: Job, workers: int) -> None:
        """Add or send away workers."""
        found = self.jobs.get(job.name)
        if found is None or found.closed:
            raise EngineError(f"job {job.name} is not there to be scaled")
        self._resize(found, workers)

    async def capacity(self, job: Job) -> Capacity:
        """What a test or the option `capacity` says; nothing limits the workers if neither does."""
        if job.run_uri in self.capacities:
            return replace(self.capacities[job.run_uri], at=time.time())
        said = job.spec.engine_options.get("capacity", {})
        try:
            text = said if isinstance(said, Mapping) else await asyncio.to_thread(Path(said).read_text)
            plain = json.loads(text) if isinstance(text, str) else text
            return decode(Capacity, {"at": time.time(), **plain})
        except (OSError, ValueError) as error:
            raise EngineError(f"engine_options.capacity: {said} cannot be read: {error}") from error

    async def regroup(self, job: Job, members: tuple[int, ...]) -> None:
        """Keep which workers were to meet."""
        found = self.jobs.get(job.name)
        if found is None or found.closed:
            raise EngineError(f"job {job.name} is not there to be regrouped")
        found.met.append(members)

    async def rejoin(self, job: Job, attempt: int, lost: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Keep which attempt the workers were to begin. Those that are there have never failed, by what it sees."""
        found = self.jobs.get(job.name)
        if found is None or found.closed or attempt in found.rejoined:
            return ()
        found.rejoined.append(attempt)
        names = {f"node-{index}" for index in lost}
        found.workers = [_become(w, WorkerPhase.LEFT) if w.name in names else w for w in found.workers]
        there = len(found.workers)
        self._resize(found, sum(worker.phase in _LIVE for worker in found.workers) + len(lost))
        return tuple(worker.index for worker in found.workers[there:])

    async def stand_by(self, job: Job) -> tuple[int, ...]:
        """Add standby workers, in place of those that train now or have ended."""
        found = self.jobs.get(job.name)
        if found is None or found.closed:
            return ()
        found.standby = [worker for worker in found.standby if worker.phase in _LIVE]
        missing = job.spec.workers.standby - len(found.standby)
        numbers = tuple(range(found.started, found.started + max(0, missing)))
        found.standby += [WorkerStatus(f"node-{number}", WorkerPhase.RUNNING) for number in numbers]
        found.started += len(numbers)
        found.changed.set()
        return numbers

    def end_standby(self, name: str, status: WorkerStatus) -> None:
        """Replace what is known of the job's first standby worker."""
        found = self.jobs[name]
        found.standby[0] = status
        found.changed.set()

    async def delete(self, job: Job, grace_seconds: float) -> None:
        """End the job for good, also one that never was."""
        found = self.jobs.setdefault(job.name, FakeJob(job.spec.digest))
        found.closed = True
        found.workers = [_become(w, WorkerPhase.LEFT) if w.phase in _LIVE else w for w in found.workers]
        found.changed.set()

    async def close(self, job: Job) -> None:
        """Nothing is left that would have to be cleaned up."""

    def doctor(self, namespace: str | None = None) -> list[Finding]:
        """It always works."""
        return [Finding("fake", ok=True, text="jobs in memory")]

    # -- what tests do to it -------------------------------------------------------------------------------------

    def set_capacity(self, run_uri: str, capacity: Capacity) -> None:
        """Say how much room there is for a run from now on, and who claims it; `at` is set at each look."""
        self.capacities[run_uri] = capacity

    def end_worker(self, name: str, index: int, status: WorkerStatus) -> None:
        """Replace what is known of one worker of the job `name`."""
        found = self.jobs[name]
        found.workers[index] = status
        found.changed.set()

    def hold(
        self, name: str, waiting: Waiting, reason: str | None = None, *, workers: int | None = None
    ) -> None:
        """Have the last `workers` live workers of the job wait, all of them by default, and let the others run."""
        found = self.jobs[name]
        live = [i for i, worker in enumerate(found.workers) if worker.phase in _LIVE]
        held = live if workers is None else live[len(live) - workers :]
        for i in live:
            node = found.workers[i].name
            if i in held:
                found.workers[i] = WorkerStatus(node, WorkerPhase.PENDING, waiting=waiting, reason=reason)
            else:
                found.workers[i] = WorkerStatus(node, WorkerPhase.RUNNING)
        found.changed.set()

    def release(self, name: str) -> None:
        """Have all workers run that wait, and those that come later."""
        found = self.jobs[name]
        found.waiting = None
        pending, running = WorkerPhase.PENDING, WorkerPhase.RUNNING
        found.workers = [_become(w, running) if w.phase is pending else w for w in found.workers]
        found.changed.set()

    def finish(self, name: str) -> None:
        """Have all workers succeed that have not ended."""
        found = self.jobs[name]
        found.workers = [_become(w, WorkerPhase.SUCCEEDED) if w.phase in _LIVE else w for w in found.workers]
        found.changed.set()

    def _resize(self, job: FakeJob, workers: int) -> None:
        live = [i for i, worker in enumerate(job.workers) if worker.phase in _LIVE]
        phase = WorkerPhase.RUNNING if job.waiting is None else WorkerPhase.PENDING
        for i in live[workers:]:
            job.workers[i] = _become(job.workers[i], WorkerPhase.LEFT)
        for _ in range(workers - len(live)):
            if job.standby:
                job.workers.append(job.standby.pop(0))
                continue
            job.workers.append(WorkerStatus(f"node-{job.started}", phase, waiting=job.waiting))
            job.started += 1
        job.changed.set()


def _become(worker: WorkerStatus, phase: WorkerPhase) -> WorkerStatus:
    return WorkerStatus(worker.name, phase)
