"""The traces of SenseTime's Helios clusters: `cluster_log.csv`, one line for each job.

Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC '21; the
format is described at github.com/S-Lab-System-Group/HeliosData. Jobs without GPUs, and those that never ran, are left
out.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from airflow_elastic.testing.simulator.traces.fields import rows
from airflow_elastic.testing.simulator.traces.trace import Job, Trace, ordered
from airflow_elastic.testing.simulator.traces.workloads import Elasticity, job

NODE_GPUS = 8

_NEEDED = ("job_id", "gpu_num", "submit_time", "duration")


def read(path: Path, seed: int, elasticity: Elasticity) -> Trace:
    """The trace of a file. Raises TraceError with the place of a bad value."""
    jobs: list[Job] = []
    left_out: Counter[str] = Counter()
    most = 1
    for where, row in rows(path, _NEEDED):
        gpus = where.whole("gpu_num", row["gpu_num"])
        submitted = where.moment("submit_time", row["submit_time"])
        if row["duration"] in ("", "None"):
            left_out["never ran"] += 1
            continue
        seconds = where.number("duration", row["duration"])
        if not gpus:
            left_out["no GPUs"] += 1
        elif not seconds:
            left_out["never ran"] += 1
        else:
            most = max(most, gpus)
            kind = f"{row.get('vc', '')}/{row.get('user', '')}/{gpus}"
            jobs.append(job(row["job_id"], submitted, gpus, seconds, kind, seed, elasticity))
    name = f"{path.name} (Helios), seed {seed}"
    return Trace(name, ordered(jobs), -(-most // NODE_GPUS), NODE_GPUS, (), dict(left_out))
