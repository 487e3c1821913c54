"""Reads a trace of any known format."""

from __future__ import annotations

from pathlib import Path

from airflow_elastic.testing.simulator.traces import helios, own, pai, philly
from airflow_elastic.testing.simulator.traces.fields import read_text
from airflow_elastic.testing.simulator.traces.trace import Trace, TraceError
from airflow_elastic.testing.simulator.traces.workloads import Elasticity

FORMATS = ("own", "philly", "helios", "pai")


def read(path: Path, form: str | None, seed: int, elasticity: Elasticity) -> Trace:
    """The trace of a file.

    Args:
        path: of the file.
        form: one of `FORMATS`; None: it is recognised.
        seed: for what the format does not say.
        elasticity: which sizes jobs may have; our own format says it itself.

    Raises:
        TraceError: with file, line and field.
    """
    form = form or _recognised(path)
    if form == "own":
        trace = own.read(path)
    else:
        reader = {"philly": philly.read, "helios": helios.read, "pai": pai.read}[form]
        trace = reader(path, seed, elasticity)
    if not trace.jobs:
        reasons = ", ".join(f"{count} × {reason}" for reason, count in trace.left_out.items())
        raise TraceError(
            f"{path}: it has no job with GPUs and a duration" + (f" ({reasons})" if reasons else "")
        )
    return trace


def _recognised(path: Path) -> str:
    begin = read_text(path).lstrip()[:500]
    first = begin.partition("\n")[0]
    if begin.startswith("["):
        return "philly"
    if begin.startswith("{"):
        return "own"
    if "gpu_num" in first:
        return "helios"
    if "plan_gpu" in first or first.count(",") == 9:
        return "pai"
    raise TraceError(f"{path}: its format is not recognised; name it by --format: {', '.join(FORMATS)}")
