"""Where the time of a training goes, and which part holds it up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_elastic.core.planning.duration import Duration
    from airflow_elastic.core.planning.known import Known
    from airflow_elastic.core.scaling.throughput import Fit

#: GPUs that compute for less of the time wait for something else.
IDLE_GPU = 0.5

_TEXTS = {
    "steps": "steps; their parts are unknown until a second number of workers is measured",
    "computation": "the work of a step that workers divide among themselves",
    "synchronisation": "grows with each worker: waiting for each other, and the network",
    "fixed": "the same on any number of workers: data, Python and the optimizer",
    "data": "the GPUs wait: for data, or for the processors",
    "saving": "training stands still for saves",
    "starting": "until the first step",
    "failing": "steps to repeat and further starts after failures",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the time.

    Attributes:
        name: `computation`, `synchronisation`, `fixed`, `data`, `saving`, `starting` or `failing`. `steps` if the parts
            of a step are unknown.
        share: of the whole time, 0 to 1.
        text: what it is, in words.
    """

    name: str
    share: float
    text: str


def parts(known: Known, curve: Fit, workers: int, took: Duration) -> tuple[Part, ...]:
    """The parts of the time, the largest first; their shares add up to 1."""
    step = {"fixed": curve.fixed, "computation": curve.divided / workers}
    step["synchronisation"] = curve.per_worker * (workers - 1)
    idle = known.gpu_use is not None and known.gpu_use < IDLE_GPU
    if len(curve.sizes) < 2:
        step = {"data" if idle else "steps": curve.step_seconds(workers)}
    elif idle:
        step["data"] = step.pop("fixed")
    whole = sum(step.values()) or 1.0
    seconds = {name: took.stepping * value / whole for name, value in step.items()}
    seconds |= {"saving": took.saving, "starting": took.starting, "failing": took.failing}
    total = sum(seconds.values())
    if total <= 0:
        return ()
    found = [Part(name, value / total, _TEXTS[name]) for name, value in seconds.items() if value > 0]
    return tuple(sorted(found, key=lambda one: (-one.share, one.name)))
