"""A plan in lines, for a log or a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_elastic.core.planning.plan import Option, Plan


def lines(name: str, plan: Plan) -> Iterator[str]:
    """The plan in lines of plain text: the recommendation, each number of workers, and what `rest` has."""
    yield heading(name, plan)
    if plan.recommended is not None:
        yield recommendation(plan)
    for one in plan.options:
        yield _option(one)
    yield from rest(plan)


def heading(name: str, plan: Plan) -> str:
    """`mnist: at step 0 of 5000; from 2 runs`."""
    of = "" if plan.total_steps is None else f" of {plan.total_steps}"
    return f"{name}: at step {plan.step}{of}; from {plan.runs} run{'' if plan.runs == 1 else 's'}"


def recommendation(plan: Plan) -> str:
    """The recommended number of workers, and why."""
    same = ", as it is" if plan.recommended == plan.workers else f", instead of {plan.workers}"
    return f"workers: {plan.recommended}{same}: {plan.why}"


def rest(plan: Plan) -> Iterator[str]:
    """Bottleneck, saves, changes that would help, and unknown times."""
    if (part := plan.bottleneck) is not None:
        yield f"bottleneck: {part.name}, {part.share:.0%} of the time: {part.text}"
        yield "time: " + ", ".join(f"{one.name} {one.share:.0%}" for one in plan.parts if one.share >= 0.005)
    if plan.interval_seconds is not None:
        now = "" if plan.interval_now is None else f", now {time(plan.interval_now)}"
        yield f"a save every {time(plan.interval_seconds)}{now}: {plan.interval_why}"
    yield from (f"would change it: {line}" for line in plan.changes)
    yield from (f"unknown: {line}" for line in plan.unknown)


def time(seconds: float) -> str:
    """`1.4 s`, `62 s`, `25 min`, `3 h 05 min`."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _option(one: Option) -> str:
    text = f"{one.workers} worker{'' if one.workers == 1 else 's'}: {one.step_seconds:.3g} s a step"
    if one.seconds is not None and one.low is not None and one.high is not None:
        text += f", done in {time(one.seconds)} ({time(one.low)} to {time(one.high)})"
    if one.gpu_hours is not None:
        text += f", {one.gpu_hours:.3g} GPU hours"
    if one.cost is not None:
        text += f", cost {one.cost:.2f}"
    marks = ["measured" if one.measured else "from the curve", *([] if one.allowed else ["not permitted"])]
    return f"{text}; {', '.join(marks)}"
