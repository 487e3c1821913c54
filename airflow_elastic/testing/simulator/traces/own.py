"""Our own format, in which every trace can be written: JSON lines.

The first line is the cluster: `{"trace": "name", "nodes": 4, "gpus": 8}`. Each other line is a job, or an outage of a
node: `{"node": 0, "begins": 3600, "ends": 7200}`. A job has the fields of `Job`; its curve is `[fixed, divided,
per_worker]` in seconds. `least`, `most`, `gpus`, `kind` and `crashes` may be left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_elastic.core.scaling.throughput import Fit
from airflow_elastic.testing.simulator.traces.fields import Where, read_text
from airflow_elastic.testing.simulator.traces.trace import Job, Outage, Trace, TraceError, ordered


def read(path: Path) -> Trace:
    """The trace of a file. Raises TraceError with the place of a bad value."""
    head: tuple[str, int, int] | None = None
    jobs: list[Job] = []
    outages: list[Outage] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        where = Where(path, number)
        try:
            record = json.loads(line)
        except ValueError as error:
            raise TraceError(f"{path}, line {number}: it is no JSON: {error}") from None
        if not isinstance(record, Mapping):
            raise where.bad("(the whole)", record, "a mapping")
        if head is None:
            _has(where, record, "trace", "nodes", "gpus")
            sizes = (where.whole(name, record[name], least=1) for name in ("nodes", "gpus"))
            head = (str(record["trace"]), *sizes)  # type: ignore[assignment]
        elif "node" in record:
            outages.append(_outage(where, record, head[1]))
        else:
            jobs.append(_job(where, record))
    if head is None:
        raise TraceError(f"{path}: it is empty; the first line is the cluster")
    name, nodes, gpus = head
    ordered_outages = tuple(sorted(outages, key=lambda one: (one.begins, one.node)))
    trace = Trace(name, ordered(jobs), nodes, gpus)
    fits = trace.on(nodes, gpus)
    return Trace(name, fits.jobs, nodes, gpus, ordered_outages, fits.left_out)


def text(trace: Trace) -> str:
    """The trace in this format."""
    lines: list[dict[str, Any]] = [{"trace": trace.name, "nodes": trace.nodes, "gpus": trace.gpus}]
    for job in trace.jobs:
        curve = [job.curve.fixed, job.curve.divided, job.curve.per_worker]
        names = ("name", "submitted_at", "workers", "least", "most", "steps", "gpus", "kind", "crashes")
        lines.append({name: getattr(job, name) for name in names} | {"curve": curve})
    lines += [{"node": one.node, "begins": one.begins, "ends": one.ends} for one in trace.outages]
    return "".join(json.dumps(line) + "\n" for line in lines)


def _job(where: Where, record: Mapping[str, Any]) -> Job:
    _has(where, record, "name", "submitted_at", "workers", "steps", "curve")
    workers = where.whole("workers", record["workers"], least=1)
    least = where.whole("least", record.get("least", workers), least=1)
    most = where.whole("most", record.get("most", workers), least=1)
    if not least <= workers <= most:
        raise where.bad("workers", workers, f"an integer from least, {least}, to most, {most}")
    curve, crashes = record["curve"], record.get("crashes", [])
    if not isinstance(curve, list) or len(curve) != 3:
        raise where.bad("curve", curve, "[fixed, divided, per_worker]")
    if not isinstance(crashes, list):
        raise where.bad("crashes", crashes, "a list of seconds")
    parts = [where.number(f"curve.{i}", value) for i, value in enumerate(curve)]
    if not sum(parts[:2]) > 0:
        raise where.bad("curve", curve, "seconds; fixed and divided are not both 0")
    return Job(
        name=str(record["name"]),
        submitted_at=where.number("submitted_at", record["submitted_at"]),
        workers=workers,
        least=least,
        most=most,
        steps=where.whole("steps", record["steps"], least=1),
        curve=Fit(parts[0], parts[1], parts[2], ()),
        gpus=where.whole("gpus", record.get("gpus", 1), least=1),
        kind=str(record.get("kind", "")),
        crashes=tuple(where.number(f"crashes.{i}", value) for i, value in enumerate(crashes)),
    )


def _outage(where: Where, record: Mapping[str, Any], nodes: int) -> Outage:
    _has(where, record, "node", "begins", "ends")
    node = where.whole("node", record["node"])
    if node >= nodes:
        raise where.bad("node", node, f"an integer from 0 to {nodes - 1}")
    begins = where.number("begins", record["begins"])
    return Outage(node, begins, where.number("ends", record["ends"], least=begins))


def _has(where: Where, record: Mapping[str, Any], *names: str) -> None:
    if missing := [name for name in names if name not in record]:
        raise where.lacking(missing, sorted(map(str, record)))
