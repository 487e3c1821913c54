"""Submit, watch, scale and delete workers on this machine."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import itertools
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.host import processes as linux
from airflow_elastic.adapters.plugins import how_to_install, lacking
from airflow_elastic.adapters.records.job_files import LOG_SECONDS, JobFiles, JobRecord, Members
from airflow_elastic.adapters.records.rank_progress import gather_files
from airflow_elastic.adapters.records.reports import write_progress
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.engines.api import ROOM_LIMITS, Capabilities, Finding, Job, Room
from airflow_elastic.engines.local.host import NodeHost, secrets
from airflow_elastic.engines.local.room import capacity, room
from airflow_elastic.engines.local.watch import watch
from airflow_elastic.launchers import find_launcher
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.errors import EngineError, Problem, SpecError, SubmitRefused
from airflow_elastic.spec.validation import MOST_PROCS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.run import RunSpec
    from airflow_elastic.spec.scaling.observation import Capacity
    from airflow_elastic.spec.status import JobStatus

#: The seconds beyond its grace before a worker is killed: it has to notice, and to record how it ended.
_MARGIN_SECONDS = 2.0

_OPTIONS = {"python": "the path of a Python interpreter that has torch and airflow-elastic[runtime]"}


class LocalEngine:
    """Workers as processes of this machine, each in a session of its own, found again through the run's folder."""

    name = "local"
    capabilities = Capabilities(scale_in_place=True, rejoin=True, standby=True)

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        open_store: Callable[[str], Store] = open_store,
    ) -> None:
        """Only needed if the defaults do not fit.

        Args:
            environment: more variables for the workers, e.g. credentials; passed on in memory, never written.
            open_store: opens run URIs, if that takes credentials that the environment does not hold.
        """
        self._environment = dict(environment or {})
        self._open_store = open_store

    def check(self, spec: RunSpec) -> None:
        """Refuse unknown options, and an interpreter or a working folder that does not exist."""
        problems = []
        for option, value in spec.engine_options.items():
            if option not in _OPTIONS:
                problems.append(Problem(f"engine_options.{option}", value, f"one of {', '.join(_OPTIONS)}"))
        python = _python(spec)
        if not isinstance(python, str) or shutil.which(python) is None:
            problems.append(Problem("engine_options.python", python, _OPTIONS["python"]))
        module = find_launcher(spec.launcher).module
        if python == sys.executable and not _is_there("torch"):
            allowed = (
                f"an engine whose workers can start here: {python} has no torch ({how_to_install('torch')})"
            )
            problems.append(Problem("engine", self.name, allowed))
        elif module is not None and python == sys.executable and not _is_there(module):
            allowed = f"a launcher whose package is installed here: this one needs {module} ({how_to_install(module)})"
            problems.append(Problem("launcher", spec.launcher, allowed))
        if spec.tensorboard and python == sys.executable and not _is_there("tensorboard"):
            allowed = f"false where TensorBoard is not installed: {how_to_install('tensorboard')}"
            problems.append(Problem("tensorboard", spec.tensorboard, allowed))
        workers = spec.workers
        if workers.at_most * workers.procs > MOST_PROCS:
            allowed = f"at most {MOST_PROCS} ranks with the engine local: all are processes of this machine"
            field = "count" if workers.max is None else "max"
            problems.append(Problem(f"workers.{field}", workers.at_most, allowed))
        if spec.working_dir is not None and not Path(spec.working_dir).is_dir():
            problems.append(Problem("working_dir", spec.working_dir, "a folder that exists on this machine"))
        problems += [
            Problem(f"secrets.{i}.source", secret.source, "env or file with the engine local")
            for i, secret in enumerate(spec.secrets)
            if secret.source == "kubernetes"
        ]
        if problems:
            raise SpecError(*problems)

    async def room(self, spec: RunSpec, limits: Collection[str] = ROOM_LIMITS) -> Room:
        """See `MeasuresRoom`: by processors, memory and GPUs of this machine."""
        return await asyncio.to_thread(room, spec, limits)

    async def capacity(self, job: Job) -> Capacity:
        """The same beside the job's own workers. There are no claims: nothing waits for room on this machine."""
        return await asyncio.to_thread(self._capacity, job)

    def _capacity(self, job: Job) -> Capacity:
        members = job_files(job).newest_members()
        return capacity(job.spec, 0 if members is None else len(members.all))

    def render(self, job: Job) -> dict[str, Any]:
        """The job's record and its first workers, as they are written into its folder."""
        plain: dict[str, Any] = encode({"job": _record(job), "members": list(range(job.workers))})
        return plain

    async def submit(self, job: Job) -> None:
        """Write the job's record and have its workers started. The first caller creates it; all others adopt it."""
        await asyncio.to_thread(self._submit, job)

    def _submit(self, job: Job) -> None:
        secrets(job.spec, os.environ)
        host, files, record = _host(job), job_files(job), _record(job)
        with host.submitting():  # or it would stop the host that another controller has just started
            if not any(host.state.glob("*/job.json")):
                host.stop()  # of a run that was removed while it was at work, and may still write there
            if files.closed:
                raise EngineError(f"job {job.name} has been deleted: it is not started again")
            if not files.create("job.json", record):
                _adopt(files, record)
        files.begin(Members(1, tuple(range(job.workers)), time.time()))
        self._ensure_host(job)

    def _ensure_host(self, job: Job) -> None:
        members = job_files(job).newest_members()
        workers = len(members.nodes) if members else job.workers
        _host(job).ensure(job.spec, _python(job.spec), self._environment, workers)

    def watch(self, job: Job) -> AsyncIterator[JobStatus]:
        """Snapshots from the agents' pidfds and result files; a dead worker is seen within milliseconds."""
        return watch(job_files(job), lambda: self._ensure_host(job))

    async def scale(self, job: Job, workers: int) -> None:
        """Begin a new generation: workers are added at the end, or leave from the end; the others stay."""
        await asyncio.to_thread(self._scale, job, workers)

    def _scale(self, job: Job, workers: int) -> None:
        files = job_files(job)
        members = files.newest_members()
        if members is None or files.closed:
            raise EngineError(f"job {job.name} is not there to be scaled")
        if len(members.nodes) == workers:
            return
        more = itertools.chain(_ready(files), itertools.count(max(files.nodes()) + 1))
        nodes = (*members.nodes[:workers], *itertools.islice(more, max(0, workers - len(members.nodes))))
        following = replace(members, generation=members.generation + 1, nodes=nodes, at=time.time())
        if not files.begin(following):
            raise EngineError(f"job {job.name} is being scaled by somebody else")
        self._ensure_host(job)

    async def rejoin(self, job: Job, attempt: int, lost: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Kill the remaining processes of lost workers, and begin a generation for this attempt."""
        return await asyncio.to_thread(self._rejoin, job, attempt, lost)

    def _rejoin(self, job: Job, attempt: int, lost: tuple[int, ...]) -> tuple[int, ...]:
        for index in lost:
            _kill(partial(_left_of, job, index), f"node-{index} of {job.name}")
        files = job_files(job)
        replacements = files.rejoin(attempt, lost, standby=_ready(files))
        if lost:
            self._ensure_host(job)
        return replacements

    async def stand_by(self, job: Job) -> tuple[int, ...]:
        """Have further agents started, which import torch, and wait to be named in a generation."""
        return await asyncio.to_thread(self._stand_by, job)

    def _stand_by(self, job: Job) -> tuple[int, ...]:
        files = job_files(job)
        if files.closed or files.newest_members() is None:
            return ()
        before = files.standby().nodes
        now = files.ask_standby(job.spec.workers.standby, partial(_is_lost, files))
        if now is None:
            return ()
        self._ensure_host(job)
        return tuple(node for node in now.nodes if node not in before)

    async def delete(self, job: Job, grace_seconds: float) -> None:
        """Close the job, let its workers save, then kill their remaining processes.

        Workers that only copy their logs get time for it, whatever the grace: after this call only the output of the
        next attempt is shown.
        """
        files = job_files(job)
        await asyncio.to_thread(_refuse_foreign, files, job)
        await asyncio.to_thread(files.create, "closed", {"at": time.time()})
        agents = await asyncio.to_thread(_live_agents, files)
        if grace_seconds > 0 and agents:
            for agent in agents:
                agent.send(signal.SIGTERM)
            await _wait_gone(agents, grace_seconds + _MARGIN_SECONDS)
        await asyncio.to_thread(_kill, partial(_left, files, job), job.name)
        copying = partial(_live_agents, files, ended=True)
        await _wait_gone(await asyncio.to_thread(copying), 2 * LOG_SECONDS)
        await asyncio.to_thread(_kill, copying, job.name)
        await asyncio.to_thread(files.forget_fetched)
        await asyncio.to_thread(_last_report, files, self._open_store(job.run_uri))

    async def close(self, job: Job) -> None:
        """End the run's node host; with cleanup All remove the jobs' folders (logs and checkpoints stay)."""
        state = state_folder(job.run_uri)
        await asyncio.to_thread(_host(job).stop)
        if job.spec.cleanup == "All":
            await asyncio.to_thread(shutil.rmtree, state, ignore_errors=True)

    def doctor(self, namespace: str | None = None) -> list[Finding]:
        """Whether this machine can run workers."""
        python = sys.executable
        for module in ("torch", "numpy"):  # agents need them, even if the script does not
            if why := lacking(module):
                lacks = f"workers need {module} in {python} ({why}): {how_to_install(module)}"
                return [Finding("local: interpreter", False, lacks, needed=False)]
        pidfd = _has_pidfds()
        return [
            Finding(
                "local: processes",
                pidfd,
                "pidfd works" if pidfd else "Linux 5.3 or newer is needed for pidfd_open",
            ),
            Finding("local: interpreter", True, python),
            Finding("local: processors", True, f"{os.cpu_count()} for all workers together"),
        ]


def _has_pidfds() -> bool:
    """Checked by a call, because Python may have it while the kernel lacks or forbids it."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def state_folder(run_uri: str) -> Path:
    """The folder for a run's jobs: in the run's folder, or for a run on S3 in the user's home."""
    local = open_store(run_uri).local_path("local")
    if local is not None:
        return local
    home = Path(os.environ.get("AIRFLOW_ELASTIC_HOME", Path.home() / ".airflow-elastic"))
    return home / "local" / hashlib.sha256(run_uri.encode()).hexdigest()[:16]


def job_files(job: Job) -> JobFiles:
    """The folder of one job."""
    return JobFiles(state_folder(job.run_uri) / job.name)


def _is_lost(files: JobFiles, index: int) -> bool:
    agent = files.agent(index)
    return agent is not None and not agent.alive


def _ready(files: JobFiles) -> list[int]:
    """The standby workers whose agents run."""
    return [
        node for node in files.standby().nodes if (agent := files.agent(node)) is not None and agent.alive
    ]


def _record(job: Job) -> JobRecord:
    return JobRecord(
        name=job.name,
        run_uri=job.run_uri,
        attempt=job.attempt,
        spec=job.spec,
        digest=job.spec.digest,
        machine=linux.this_machine(),
        python=_python(job.spec),
        standby=job.standby,
        origin=job.origin,
    )


def _python(spec: RunSpec) -> str:
    python: str = spec.engine_options.get("python", sys.executable)
    return python


def _host(job: Job) -> NodeHost:
    return NodeHost(state_folder(job.run_uri))


def _adopt(files: JobFiles, ours: JobRecord) -> None:
    theirs = files.record
    if theirs is None or (theirs.run_uri, theirs.digest) != (ours.run_uri, ours.digest):
        raise SubmitRefused(
            f"{files.folder} holds another job than {ours.name}: it is left alone; use another run URI"
        )
    if theirs.machine.partition("/")[0] != ours.machine.partition("/")[0]:
        raise EngineError(_elsewhere(theirs, ours))


def _refuse_foreign(files: JobFiles, job: Job) -> None:
    """Workers on another machine can neither be seen nor ended from here: report that instead of guessing."""
    theirs, ours = files.record, _record(job)
    if theirs is not None and theirs.machine.partition("/")[0] != ours.machine.partition("/")[0]:
        raise EngineError(_elsewhere(theirs, ours))


def _elsewhere(theirs: JobRecord, ours: JobRecord) -> str:
    there, here = theirs.machine.partition("/")[0], ours.machine.partition("/")[0]
    return (
        f"the workers of {ours.name} run on machine {there!r}, this is {here!r}: the local engine sees only its own. "
        f"Carry the run on there, or use an engine that spans machines"
    )


def _live_agents(files: JobFiles, *, ended: bool = False) -> list[linux.Process]:
    """The agents that are at work; or those that have ended, and only copy their logs."""
    agents = (files.agent(node) for node in files.nodes() if files.has_ended(node) is ended)
    return [agent for agent in agents if agent and agent.alive]


async def _wait_gone(agents: list[linux.Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(agent.alive for agent in agents):  # noqa: ASYNC110 - nobody sets an event
        await asyncio.sleep(0.02)


def _left(files: JobFiles, job: Job) -> list[linux.Process]:
    """The running processes of a job. It is closed, so no new ones can start."""
    return [*_live_agents(files), *linux.marked("AIRFLOW_ELASTIC_JOB", job.name)]


def _left_of(job: Job, index: int) -> list[linux.Process]:
    """The running processes of a lost worker. Its agent is one of them if it is alive, and says nothing."""
    agent, mine = job_files(job).agent(index), linux.marked("AIRFLOW_ELASTIC_WORKER", f"node-{index}")
    ranks = [process for process in linux.marked("AIRFLOW_ELASTIC_JOB", job.name) if process in mine]
    return [*([agent] if agent and agent.alive else ()), *ranks]


def _kill(left: Callable[[], list[linux.Process]], what: str) -> None:
    """Kill until no process is left."""
    deadline = time.monotonic() + 30.0
    while processes := left():
        for process in processes:
            process.send(signal.SIGKILL)
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in processes)
            raise EngineError(
                f"processes {pids} of {what} survive SIGKILL: look at them with ps; trying again"
            )
        time.sleep(0.002)


def _last_report(files: JobFiles, store: Store) -> None:
    """Report the last steps of the ranks, also of those that were killed."""
    record = files.record
    if record is not None and files.newest_members() is not None:
        write_progress(store, gather_files(files, record))
