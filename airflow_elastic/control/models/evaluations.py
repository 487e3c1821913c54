"""The end of an evaluation: its metrics are kept beside what it has measured, which is then released."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints, promotions
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.control.models.start_from import holder
from airflow_elastic.spec import layout as of_runs
from airflow_elastic.spec.checkpoints.evaluation import Evaluation
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.models import layout as of_models

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.models.start import Origin


def note(origin: Origin, metrics: Mapping[str, float], opens: Callable[[str], Store], *, by: str) -> None:
    """Record what was measured: beside the checkpoint in its run, or beside the promotion in its model URI.

    What is gone meanwhile is not recorded. An evaluation of a file has no such place.

    Args:
        origin: what was evaluated.
        metrics: what was measured.
        opens: opens the store at a URI.
        by: URI of the run that has measured.

    Raises:
        StoreError: the storage fails.
    """
    name = hashlib.sha256(by.encode()).hexdigest()[:16]
    now = time.time()
    try:
        if origin.promotion is not None:
            model = opens(origin.source)
            weights = promotions.read(model, origin.promotion).weights
            place, folder, data = model, of_models.evaluations(origin.promotion), weights.key
        elif origin.run is not None and origin.step is not None:
            place, folder = opens(origin.run), of_runs.evaluations(origin.step)
            data = checkpoints.read(place, origin.step).data
        else:
            return
    except (CheckpointDamaged, InvalidInput):
        return
    checkpoint_retention.note_evaluation(place, folder, Evaluation(name, by, now, dict(metrics), data))


def let_go(origin: Origin, opens: Callable[[str], Store], *, by: str) -> None:
    """Remove the pin of what was evaluated. A pin of somebody else stays."""
    if origin.file is None and origin.run is not None and origin.step is not None:
        checkpoint_retention.release(opens(origin.run), origin.step, by=holder(by))
