"""The trace of Alibaba's PAI: `pai_task_table.csv`, and `pai_job_table.csv` beside it if it is there.

Weng et al., "MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale Heterogeneous GPU Clusters", NSDI '22.
The format is described at github.com/alibaba/clusterdata, cluster-trace-gpu-v2020. The tables come without a line of
names; one is accepted. `plan_gpu` is in percent of a GPU for each instance. Shares of a GPU are rounded up to whole
ones. A job's GPUs are those of all its tasks, its time that of the longest. The job table has the time of submission
and the user.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_elastic.testing.simulator.traces.fields import Where, rows
from airflow_elastic.testing.simulator.traces.trace import Job, Trace, ordered
from airflow_elastic.testing.simulator.traces.workloads import Elasticity, job

NODE_GPUS = 8
JOB_TABLE = "pai_job_table.csv"

_TIMES = ("status", "start_time", "end_time")
_TASKS = ("job_name", "task_name", "inst_num", *_TIMES, "plan_cpu", "plan_mem", "plan_gpu", "gpu_type")
_JOBS = ("job_name", "inst_id", "user", *_TIMES)


@dataclass(slots=True)
class _Found:
    gpus: int = 0
    begin: float = math.inf
    seconds: float = 0.0


def read(path: Path, seed: int, elasticity: Elasticity) -> Trace:
    """The trace of a task table. Raises TraceError with the place of a bad value."""
    found: dict[str, _Found] = {}
    left_out: Counter[str] = Counter()
    for where, row in rows(path, ("job_name", "inst_num", "start_time", "end_time", "plan_gpu"), _TASKS):
        gpus = _gpus(where, row)
        if not gpus:
            left_out["task without GPUs"] += 1
        elif not row["start_time"] or not row["end_time"]:
            left_out["task without a start and an end"] += 1
        else:
            begin = where.number("start_time", row["start_time"])
            end = where.number("end_time", row["end_time"])
            if end < begin:
                raise where.bad("end_time", row["end_time"], f"not before start_time, {row['start_time']}")
            one = found.setdefault(row["job_name"], _Found())
            one.gpus += gpus
            one.begin = min(one.begin, begin)
            one.seconds = max(one.seconds, end - begin)
    table = path.with_name(JOB_TABLE)
    told = _job_table(table) if table.exists() else {}
    jobs: list[Job] = []
    most = 1
    for name, one in found.items():
        if not one.seconds:
            left_out["never ran"] += 1
            continue
        user, submitted = told.get(name, ("", one.begin))
        most = max(most, one.gpus)
        kind = f"{user}/{one.gpus}"
        jobs.append(job(name, min(submitted, one.begin), one.gpus, one.seconds, kind, seed, elasticity))
    title = f"{path.name} (PAI), seed {seed}"
    return Trace(title, ordered(jobs), -(-most // NODE_GPUS), NODE_GPUS, (), dict(left_out))


def _gpus(where: Where, row: Mapping[str, str]) -> int:
    """Whole GPUs of all instances of a task; 0 without."""
    if not row["plan_gpu"] or not row["inst_num"]:
        return 0
    share = where.number("plan_gpu", row["plan_gpu"]) / 100.0
    return where.whole("inst_num", row["inst_num"]) * math.ceil(share)


def _job_table(path: Path) -> dict[str, tuple[str, float]]:
    """User and time of submission of each job."""
    told = {}
    for where, row in rows(path, ("job_name", "user", "start_time"), _JOBS):
        if row["start_time"]:
            told[row["job_name"]] = row["user"], where.number("start_time", row["start_time"])
    return told
