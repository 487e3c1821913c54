"""Choose a checkpoint of a run: the newest one, one of a step, or the best one by a metric."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints, journal
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.spec.errors import CheckpointMissing, InvalidInput, Problem, RunMissing, SpecError

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.checkpoints.manifest import Manifest


def choose(store: Store, step: int | None = None, best: str | None = None) -> Manifest:
    """The manifest of a checkpoint.

    Args:
        store: of the run.
        step: of the checkpoint.
        best: `min` or `max` and a metric, e.g. `min val_loss`. It may be one that an evaluation has measured.

    Raises:
        RunMissing: there is no run, or it has no checkpoint yet.
        CheckpointMissing: there is none of this step.
        InvalidInput: no checkpoint has this metric; both are given.
    """
    if step is not None and best is not None:
        raise SpecError(Problem("best", best, "none with `step`: one of them chooses the checkpoint"))
    if step is not None:
        try:
            return checkpoints.read(store, step)
        except CheckpointDamaged as error:
            there = ", ".join(map(str, checkpoints.steps(store))) or "none"
            raise CheckpointMissing(f"{error}; there are: {there}") from error
    is_ours = journal.is_ours(store)
    found = [one for one in checkpoints.readable(store) if is_ours(one)]
    if not found:
        raise RunMissing(
            f"{store.uri} has no checkpoint: check the URI, or wait for the run's first checkpoint"
        )
    return found[-1] if best is None else _best(store, found, best)


def _best(store: Store, found: list[Manifest], best: str) -> Manifest:
    sign, _, name = best.partition(" ")
    if sign not in ("min", "max") or not name or " " in name:
        raise SpecError(Problem("best", best, "`min` or `max` and the name of a metric, e.g. `min val_loss`"))
    metrics = checkpoints.at_once(lambda one: checkpoint_retention.measured(store, one), found)
    known = [
        (told[name], one)
        for told, one in zip(metrics, found, strict=True)
        if name in told and not math.isnan(told[name])
    ]
    if not known:
        there = ", ".join(sorted({metric for one in metrics for metric in one})) or "none"
        raise InvalidInput(f"no checkpoint of {store.uri} has a metric {name!r}; they have: {there}")
    values = [value for value, _ in known]
    wanted = min(values) if sign == "min" else max(values)
    # The first of equal ones: a metric is repeated with later saves until it is measured again.
    return next(one for value, one in known if value == wanted)
