"""The trace of Microsoft's Philly clusters: `cluster_job_log`, a list of jobs in JSON.

Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC '19; the format
is described at github.com/msr-fiddle/philly-traces. A job has attempts with a start, an end, and the GPUs of each
server. A job's work is the time of all its attempts with the GPUs of the last one. Jobs without a complete attempt are
left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_elastic.testing.simulator.traces.fields import Where, read_text
from airflow_elastic.testing.simulator.traces.trace import Job, Trace, TraceError, ordered
from airflow_elastic.testing.simulator.traces.workloads import Elasticity, job

#: The larger servers of these clusters have so many GPUs.
NODE_GPUS = 8

#: What the log has for a time that is not known.
_UNKNOWN = (None, "", "None")


def read(path: Path, seed: int, elasticity: Elasticity) -> Trace:
    """The trace of a file. Raises TraceError with the place of a bad value."""
    try:
        records = json.loads(read_text(path))
    except ValueError as error:
        raise TraceError(f"{path}: it is no JSON: {error}") from None
    if not isinstance(records, list):
        raise TraceError(f"{path}: given {type(records).__name__}; allowed: a list of jobs")
    jobs: list[Job] = []
    left_out: Counter[str] = Counter()
    servers: set[str] = set()
    for number, record in enumerate(records):
        where = Where(path, f"job {number + 1}")
        if not isinstance(record, Mapping):
            raise where.bad("(the whole)", record, "a mapping with jobid, submitted_time and attempts")
        needed = ("jobid", "submitted_time", "attempts")
        if missing := [name for name in needed if name not in record]:
            raise where.lacking(missing, sorted(map(str, record)))
        where = Where(path, f"job {number + 1} ({record['jobid']})")
        found = _job(where, record, seed, elasticity, servers)
        if isinstance(found, str):
            left_out[found] += 1
        else:
            jobs.append(found)
    nodes = max(1, len(servers))
    return Trace(f"{path.name} (Philly), seed {seed}", ordered(jobs), nodes, NODE_GPUS, (), dict(left_out))


def _job(
    where: Where, record: Mapping[str, Any], seed: int, elasticity: Elasticity, servers: set[str]
) -> Job | str:
    attempts = record["attempts"]
    if not isinstance(attempts, list):
        raise where.bad("attempts", attempts, "a list")
    seconds, gpus = 0.0, 0
    for i, attempt in enumerate(attempts):
        name = f"attempts.{i}"
        if not isinstance(attempt, Mapping):
            raise where.bad(name, attempt, "a mapping with start_time, end_time and detail")
        begin, end = attempt.get("start_time"), attempt.get("end_time")
        if begin in _UNKNOWN or end in _UNKNOWN:
            continue
        lasted = where.moment(f"{name}.end_time", end) - where.moment(f"{name}.start_time", begin)
        if lasted < 0:
            raise where.bad(f"{name}.end_time", end, f"not before start_time, {begin}")
        count = 0
        for server in attempt.get("detail") or ():
            if not isinstance(server, Mapping) or not isinstance(server.get("gpus"), list):
                raise where.bad(f"{name}.detail", server, "mappings with ip and gpus")
            servers.add(str(server.get("ip")))
            count += len(server["gpus"])
        seconds, gpus = seconds + lasted, count or gpus
    submitted = where.moment("submitted_time", record["submitted_time"])
    if not seconds:
        return "no attempt with a start and an end"
    if not gpus:
        return "no GPUs"
    kind = f"{record.get('vc', '')}/{record.get('user', '')}/{gpus}"
    return job(str(record["jobid"]), submitted, gpus, seconds, kind, seed, elasticity)
