"""The agent of a worker on a cluster: `python -P -m airflow_elastic.runtime.pod`, the first process of its container.

Its environment only names the worker and its job. The job's documents under the run URI have its orders. On SIGTERM,
which Kubernetes sends when it ends a pod, the ranks save and end (`agent.agent`).

It becomes `start_rank.py --pod` at once, without `-P`. Then it imports torch, and forks the worker's fork server. So
its ranks find the `sys.path` and `__main__` of a rank, and share the memory of these imports with it.

A worker has one life in an attempt. A pod that an operator makes in place of a former one ends at once. So does a
container that is started again. Only the run decides whether and how it goes on. The container's termination message
has the reason of the end. A watch of the pod shows it without another request.
"""

from __future__ import annotations

if __name__ == "__main__":  # before anything else is imported
    from airflow_elastic.adapters.host.search_path import own_first

    own_first()
    import os
    import sys

    from airflow_elastic.adapters.host.environment import with_room

    start_rank = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank", "start_rank.py")
    # Ranks have variables that their agent has not, of less than 16,000 bytes.
    command = [sys.executable, "-u", start_rank, "--pod"]
    os.execve(sys.executable, command, with_room(os.environ, 16_000))  # noqa: S606 - our own program

import json
import logging
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host.environment import ROOM
from airflow_elastic.adapters.records.job_files import JobRecord, Result, attempt_of
from airflow_elastic.adapters.records.job_objects import JobObjects
from airflow_elastic.adapters.records.reports import newest_fence
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.launchers.read_early import before_import, read_early
from airflow_elastic.runtime.agent.fork_server import ForkServer, server_command
from airflow_elastic.runtime.agent.reporting.stdout_copy import StdoutCopy
from airflow_elastic.runtime.agent.worker import Worker
from airflow_elastic.runtime.forks.prepare import prepare, printed
from airflow_elastic.runtime.forks.server import fork_server
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.errors import ElasticError, SpecError
from airflow_elastic.spec.validation import number_in

if TYPE_CHECKING:
    from airflow_elastic.runtime.forks.server import Server

#: What the agent needs beside its ranks' modules. It imports torch.
_AGENT = tuple(
    f"airflow_elastic.runtime.agent.{name}"
    for name in ("agent", "reporting.channels", "reporting.reporter", "reporting.trainer_status")
)

#: Variables in the environment of every pod that airflow-elastic makes.
_NEEDED = tuple(f"AIRFLOW_ELASTIC_{name}" for name in ("RUN_URI", "JOB", "ATTEMPT", "INDEX", "POD_IP"))

#: Kubernetes keeps 4096 bytes of a termination message.
_MESSAGE_BYTES = 4096

#: The worker was asked to end, or has left. For an operator this is no success and no error of the script.
_ENDED = 143


@dataclass(frozen=True, slots=True)
class Life:
    """The pod that is, or was, a worker: `node-1/agent-0001.json`, created exclusively."""

    pod: str
    uid: str
    container: str


def be_pod() -> list[str]:
    """Be this pod's worker, and end with its exit code.

    Returns:
        In each rank, which is a fork of this process, the arguments of `start_rank.py`.
    """
    env = os.environ
    env.pop(ROOM, None)
    if missing := [name for name in _NEEDED if name not in env]:
        sys.stderr.write(
            f"{', '.join(missing)} not set: this is the agent of a worker on a cluster. In its own pods "
            "airflow-elastic sets these: start a run with `airflow-elastic run --engine job ...`\n"
        )
        sys.exit(2)
    try:
        attempt, index = number_in(env, "AIRFLOW_ELASTIC_ATTEMPT"), _index(env)
    except SpecError as error:
        sys.stderr.write(f"{error}: airflow-elastic sets these in the pods that it makes\n")
        sys.exit(2)
    for theirs in [key for key in env if key.startswith("PET_")]:
        del env[theirs]  # an operator's options of torchrun; this agent starts the ranks
    folder = Path(tempfile.mkdtemp(prefix="airflow-elastic-"))
    try:
        found = _begin(folder, attempt, index)
    except ElasticError as error:
        found = Result("failed", time.time(), reason=f"the agent failed: {error}")
    if isinstance(found, Result):
        sys.exit(_code(_leave(found)))
    server = _forked_server(found, index)
    return server if isinstance(server, list) else sys.exit(_code(_work(folder, index, found, server)))


def _begin(folder: Path, attempt: int, index: int) -> JobRecord | Result:
    """The job, if this worker may start in it; from then on no other pod may start as this worker.

    Nothing stays open: what is open would be open in each rank, too.
    """
    store = open_store(os.environ["AIRFLOW_ELASTIC_RUN_URI"])
    files = JobObjects(store, os.environ["AIRFLOW_ELASTIC_JOB"], folder)
    refusal = _refused(files, index)
    record, members = files.record, files.newest_members()
    if record is not None:
        attempt = attempt_of(record, members)
    if refusal is None and (newest := newest_fence(store)) > attempt:
        refusal = f"attempt {newest} has begun"
    if refusal is None and record is not None:
        return record
    stands_by = index in files.standby().nodes
    if stands_by and members is not None and files.has_finished(members, without=index):
        return Result("succeeded", time.time(), reason="the others have finished the training")
    return Result("lost", time.time(), reason=f"node-{index} did not start: {refusal or 'no job'}")


def _forked_server(record: JobRecord, index: int) -> Server | list[str] | None:
    """See `fork_server`; None if ranks are not forked, or must not be forked from this process. It imports torch."""
    os.environ.update(before_import(record.spec, workers=1))
    early = read_early(os.environ, os.getcwd())
    forks = bool(server_command(record)) and shutil.which(record.python) == sys.executable
    with printed() as said:
        unfit = prepare(*_AGENT, ranks=forks)
    if unfit is not None:
        return None
    return fork_server(said, early, {"AIRFLOW_ELASTIC_WORKER": f"node-{index}"})


def _work(folder: Path, index: int, record: JobRecord, inherited: Server | None) -> Result:
    """Run the ranks to their end."""
    from airflow_elastic.runtime.agent.agent import run_worker
    from airflow_elastic.runtime.agent.reporting.channels import LeadChannel
    from airflow_elastic.runtime.agent.reporting.reporter import Reporter
    from airflow_elastic.runtime.agent.reporting.trainer_status import also_to_trainer

    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    results: list[Result] = []
    try:
        store = open_store(record.run_uri)
        files = JobObjects(store, record.name, folder)
        node = Worker(files, record, index, store, address=os.environ["AIRFLOW_ELASTIC_POD_IP"])
        server = ForkServer(node, inherited)
        server.begin()
        reporter = Reporter(node, also_to_trainer(LeadChannel(node), os.environ))
        with StdoutCopy(node):
            run_worker(node, server, reporter, lambda result: results.append(_leave(result)))
        files.write(f"node-{index}/result.json", results[0])
    except ElasticError as error:
        if results:
            logging.getLogger(__name__).warning("the agent failed after its ranks had ended: %s", error)
        else:
            results.append(_leave(Result("failed", time.time(), reason=f"the agent failed: {error}")))
    return results[0]


def _index(env: Mapping[str, str]) -> int:
    """The worker's number: plain, or at the end of a name if the cluster gives only that."""
    end = env["AIRFLOW_ELASTIC_INDEX"].rpartition("-")[2]
    own = number_in({"AIRFLOW_ELASTIC_INDEX": end}, "AIRFLOW_ELASTIC_INDEX")
    return own + number_in(env, "AIRFLOW_ELASTIC_WORKERS_BEFORE", 0)


def _refused(files: JobObjects, index: int) -> str | None:
    """Why this worker must not start; None if it may. From then on no other pod may start as this worker."""
    stands_by = index in files.standby().nodes
    joined = files.joined(index)
    if joined is None and not stands_by and "AIRFLOW_ELASTIC_FOLLOWS" in os.environ:
        joined = _named(files, index)
    if joined is None and not stands_by:
        return "it is not among the workers of the job"
    me = Life(
        os.environ.get("AIRFLOW_ELASTIC_POD", ""),
        os.environ.get("AIRFLOW_ELASTIC_POD_UID", ""),
        uuid.uuid4().hex,
    )
    life = "standby" if joined is None else f"{joined:04d}"
    if not files.create(f"node-{index}/agent-{life}.json", me):
        return "this worker has run before, and has one life in an attempt"
    files.look_anew()
    return "the job was deleted" if files.closed else None


def _named(files: JobObjects, index: int) -> int | None:
    """Wait until the run names this worker, which exists because somebody else has scaled the job.

    It waits as long as a controller may be away.
    """
    record = files.record
    deadline = time.monotonic() + (record.spec.health.unattended_seconds if record else 0.0)
    while not files.closed and time.monotonic() < deadline:
        newest = files.newest_members()
        if newest is not None and index in newest.all:
            break
        time.sleep(files.poll_seconds)
    return files.joined(index)


def _leave(result: Result) -> Result:
    """Write the result where the cluster shows it. This comes first: the pod may have little time left."""
    path = Path(os.environ.get("AIRFLOW_ELASTIC_TERMINATION", "/dev/termination-log"))
    try:
        path.write_bytes(message(result))
    except OSError as error:
        logging.getLogger(__name__).warning("the termination message cannot be written: %s", error)
    return result


def _code(result: Result) -> int:
    """The exit code for an operator."""
    if result.outcome == "succeeded":
        return 0
    if result.outcome in ("stopped", "left", "unattended"):
        return _ENDED
    codes = [error.exit_code for error in result.errors if error.exit_code]
    return codes[0] if codes and codes[0] < 128 else 1


def message(result: Result) -> bytes:
    """The result as JSON that fits into a termination message: the first errors, and the ends of their tracebacks."""
    keep = 3000
    while True:
        errors = tuple(
            replace(
                error,
                error=(error.error or "")[:500] or None,
                traceback=(error.traceback or "")[-keep:] or None,
            )
            for error in result.errors[:2]
        )
        short = replace(result, errors=errors, reason=(result.reason or "")[:500] or None)
        data = json.dumps(encode(short)).encode()
        if len(data) <= _MESSAGE_BYTES or not keep:
            return data[:_MESSAGE_BYTES]
        keep = keep * 2 // 3 if keep > 50 else 0
