"""Remove old checkpoints of a run, and what ended attempts have left, when a person or a task asks for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checkpoint_retention
from airflow_elastic.core.state import Phase
from airflow_elastic.spec.errors import Problem, SpecError
from airflow_elastic.spec.training.early_stop import retention
from airflow_elastic.spec.validation import positive_int

if TYPE_CHECKING:
    from airflow_elastic.control.runs import Run


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed, or would be.

    Attributes:
        steps: of the checkpoints.
        leftovers: files that no checkpoint needs.
        leftover_bytes: their size.
    """

    steps: tuple[int, ...]
    leftovers: int
    leftover_bytes: int


def prune_run(run: Run, keep: int, *, dry_run: bool = False) -> Pruned:
    """Remove old checkpoints, and leftovers of ended attempts. A live attempt is not disturbed.

    Pinned checkpoints stay, and the one that was last read completely, and those that the run's specification keeps. If
    none of those that would stay has all its files, nothing is removed.

    Args:
        run: the run.
        keep: how many of the newest stay, at least 1.
        dry_run: only say what would be removed.

    Raises:
        SpecError: `keep` is not allowed.
        CheckpointDamaged: none of those that would stay is whole.
    """
    if (allowed := positive_int.broken(keep)) is not None:
        raise SpecError(Problem("keep", keep, allowed))
    state = run.state
    policy = replace(retention(state.spec.checkpoint, state.spec.early_stop), keep_last=keep)
    steps = checkpoint_retention.to_prune(run.store, policy)
    # Also of the current attempt, if it has ended; never of an attempt that may still be writing.
    before = state.attempt.number + 1 if state.attempt.phase is Phase.GONE else state.attempt.number
    left = checkpoint_retention.uncommitted(run.store, before)
    if not dry_run:
        steps = checkpoint_retention.prune(run.store, policy)
        checkpoint_retention.remove_uncommitted(run.store, before)
    return Pruned(tuple(steps), len(left), sum(entry.size for entry in left))
