"""The agents of pods, as processes of this machine. Without a cluster they share nothing but the place of the run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from airflow_elastic.adapters.records.job_files import JobRecord, Members
from airflow_elastic.adapters.records.job_objects import JobObjects
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import start_run
from airflow_elastic.engines import Job
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.testing.fake_engine import FakeEngine

#: What Kubernetes starts in each pod.
COMMAND = [sys.executable, "-P", "-m", "airflow_elastic.runtime.pod"]


def submitted(uri: str, folder: Path, spec: RunSpec) -> JobObjects:
    """Write down the job of a run's first attempt, as an engine does before it makes pods."""
    store = open_store(uri)
    start_run(store, spec, engine=FakeEngine())
    job = Job(store.uri, spec, 1, spec.workers.count)
    files = JobObjects(store, job.name, folder)
    assert files.create("job.json", JobRecord(job.name, store.uri, 1, spec, spec.digest, "", sys.executable))
    files.begin(Members(1, tuple(range(spec.workers.count)), 0.0))
    return files


def environment(files: JobObjects, index: int, folder: Path) -> dict[str, str]:
    """What the container of a pod has beside its image's environment; `folder` is for the pod's own files."""
    record = files.record
    assert record is not None
    folder.mkdir(exist_ok=True)
    return {
        **record.spec.env,
        "AIRFLOW_ELASTIC_RUN_URI": record.run_uri,
        "AIRFLOW_ELASTIC_JOB": record.name,
        "AIRFLOW_ELASTIC_ATTEMPT": "1",
        # Not that of local workers, which share this machine's processors.
        "AIRFLOW_ELASTIC_POD_IP": "127.0.0.2",
        "AIRFLOW_ELASTIC_INDEX": str(index),
        "AIRFLOW_ELASTIC_TERMINATION": str(folder / "end"),
        "TMPDIR": str(folder),
    }


@contextlib.contextmanager
def pod(
    files: JobObjects,
    index: int,
    folder: Path,
    base: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A pod's container. Its output is in `folder`; after the block it is gone."""
    environ = {**(os.environ if base is None else base), **environment(files, index, folder)}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(COMMAND, env=environ, cwd=cwd, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
