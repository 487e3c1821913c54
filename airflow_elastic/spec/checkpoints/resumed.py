"""Where a run stands when a script starts again, so that the script can build its model and optimizers to fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_elastic.spec.checkpoints.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Resumed:
    """The facts of the newest checkpoint that can be opened, which `run.restore` will load.

    `restore` reads its files. If they are damaged, a script that has not used `run.resumed` goes on from the checkpoint
    before. A script that has used it may have built a model for the damaged one only. So the checkpoint is set aside,
    and the rank ends with exit code 138 ("restart me").

    Attributes:
        step: optimizer steps done since the run began, over all attempts and phases.
        epoch: the run's current epoch, from 0: the first one that `run.epochs` yields.
        offset: samples of this epoch that have been consumed.
        samples: samples consumed since step 0.
        metrics: the newest numbers that the script gave to `run.step`, with `loss` if it was given.
        notes: what the script has kept with `run.note`.
        phase: number of the run's current phase, from 0. After a complete phase it is the next one.
        phase_name: its name; empty where it has none, or has not begun.
        phase_steps: optimizer steps done in this phase.
        results: what the script has recorded for the complete phases, by their names.
        attempt: the attempt that saved it, from 1.
        world_size: ranks that saved it.
        saved_at: when it was committed, epoch seconds.
    """

    step: int
    epoch: int = 0
    offset: int = 0
    samples: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    phase: int = 0
    phase_name: str = ""
    phase_steps: int = 0
    results: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    attempt: int = 1
    world_size: int = 1
    saved_at: float = 0.0


def resumed_from(manifest: Manifest) -> Resumed:
    """The facts of a checkpoint."""
    phases = manifest.phases
    current = phases[-1] if phases and not phases[-1].complete else None
    behind = [one for one in phases if one.complete]
    begins = bool(behind) and current is None
    return Resumed(
        step=manifest.step,
        epoch=0 if begins else manifest.epoch,
        offset=0 if begins else manifest.offset,
        samples=manifest.samples,
        metrics=manifest.metrics,
        notes=manifest.notes,
        phase=len(behind),
        phase_name=current.name if current else "",
        phase_steps=current.steps if current else 0 if begins else manifest.step,
        results={one.name or f"phase {number}": one.results for number, one in enumerate(behind)},
        attempt=manifest.attempt,
        world_size=manifest.world_size,
        saved_at=manifest.created_at,
    )
