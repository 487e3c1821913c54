"""Who has gone on from a checkpoint, and which states the workers' own disks have. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from airflow_elastic.core.state import Attempt, RunState
from airflow_elastic.spec.checkpoints.readings import Reading
from airflow_elastic.spec.status import Progress, WorkerUsage


@dataclass(frozen=True, slots=True)
class SavedBy:
    """Which ranks have saved a checkpoint. A step alone does not say: it may have been trained and saved again.

    Attributes:
        step: of the checkpoint.
        attempt: that has saved it.
        generation: of its ranks, within the attempt.
        data: the folder of its files.
    """

    step: int
    attempt: int
    generation: int
    data: str


def users(
    saved: SavedBy, state: RunState, progress: Progress | None, others: Iterable[Reading] = ()
) -> list[str]:
    """Who has gone on from a checkpoint: attempts of the run by what their ranks report, then others.

    An attempt whose ranks did not report what they have restored is not named.

    Args:
        saved: the checkpoint.
        state: the run.
        progress: the newest report of the current attempt.
        others: who has loaded the checkpoint of this step outside of the run.
    """
    found: list[str] = []
    for attempt in state.attempts:
        told = attempt.progress
        if progress is not None and progress.attempt == attempt.number:
            told = progress
        found += _attempt_users(saved, attempt, told)
    found += [one.by for one in others if one.data == saved.data]
    return list(dict.fromkeys(found))


def _attempt_users(saved: SavedBy, attempt: Attempt, progress: Progress | None) -> Iterator[str]:
    for stretch in progress.stretches if progress else ():
        is_later = (attempt.number, stretch.generation) > (saved.attempt, saved.generation)
        has_restored = stretch.from_step > 0 or stretch.restored_bytes > 0
        if is_later and has_restored and stretch.from_step == saved.step:
            workers = f"{stretch.workers} worker{'' if stretch.workers == 1 else 's'}"
            is_first = stretch.generation == (progress.stretches[0].generation if progress else 0)
            yield f"attempt {attempt.number}" if is_first else f"attempt {attempt.number} with {workers}"


def whole_on_disks(usage: Sequence[WorkerUsage | None]) -> tuple[str, ...] | None:
    """The states whose parts are all on the disks of these workers: names of folders, oldest first.

    Args:
        usage: of each worker that trains; None for a worker that has not said anything yet.

    Returns:
        None if a worker has not said yet what its disk has.
    """
    if not usage:
        return None
    parts: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for one in usage:
        if one is None or one.on_disk is None:
            return None
        for held in one.on_disk:
            parts[held.data, held.of].add(held.part)
    return tuple(sorted({data for (data, of), there in parts.items() if there >= set(range(of))}))


def on_disks(state: RunState, progress: Progress | None) -> frozenset[str]:
    """The states on the workers' disks, as workers have last said. A run that has succeeded leaves none there."""
    if state.outcome == "succeeded":
        return frozenset()
    told = [progress, *(attempt.progress for attempt in reversed(state.attempts))]
    return frozenset(next((one.on_disk for one in told if one is not None and one.on_disk is not None), ()))
