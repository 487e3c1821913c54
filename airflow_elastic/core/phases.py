"""The phases of a run, and which of them are over, for the journal and the pages. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_elastic.spec.events import PhaseCompleted

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.status import Progress


def completed(state: RunState, progress: Progress | None, now: float) -> Iterator[PhaseCompleted]:
    """The phases that ended since the last known one: each once, when a checkpoint has its end.

    Args:
        state: from the journal.
        progress: newest report of the current attempt; None where there is none.
        now: the moment.
    """
    known = progress or state.attempt.progress
    if known is None or known.attempt != state.attempt.number or state.checkpoint is None:
        return
    for number, phase in enumerate(known.phases[state.phases :], start=state.phases):
        if not phase.complete or phase.to_step > state.checkpoint.step:
            return
        yield PhaseCompleted(
            now, known.attempt, number, phase.name, phase.to_step, phase.steps, phase.results
        )


def with_completed(state: RunState, event: PhaseCompleted) -> RunState:
    """The state after a phase."""
    return replace(state, phases=max(state.phases, event.phase + 1))


def named(phases: list[Mapping[str, Any]]) -> bool:
    """Whether the phases have names: a script without phases has one, without a name."""
    return len(phases) > 1 or any(phase["name"] for phase in phases)


def phase_sentence(phase: Mapping[str, Any], number: int, *, over: bool) -> str:
    """A phase of a run in words, over or not: `phase pretrain: 300 steps, complete, accuracy 0.98`."""
    steps = phase["steps"]
    words = [f"phase {phase['name'] or number}: {steps} step{'' if steps == 1 else 's'}"]
    words.append("complete" if phase["complete"] else "not complete" if over else "at work")
    return ", ".join([*words, *results(phase["results"])])


def results(recorded: Mapping[str, Any]) -> list[str]:
    """The recorded results of a phase, in a few words each."""
    return [
        f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in recorded.items()
    ]
