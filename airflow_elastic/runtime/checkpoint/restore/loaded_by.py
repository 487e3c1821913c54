"""Records which run, or which task of Airflow, has loaded a checkpoint of another run."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checkpoint_retention
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.spec.errors import ElasticError

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.checkpoints.manifest import Manifest

log = logging.getLogger(__name__)


def note_loaded(store: Store, manifest: Manifest) -> None:
    """Record who has loaded a checkpoint: rank 0 of another run, or a task of Airflow; no other process is named.

    Costs two requests. Without the right to write there, nothing is recorded.

    Args:
        store: of the run that has saved it.
        manifest: of the checkpoint.
    """
    try:
        by = _this_process(store.uri)
        if by is not None:
            checkpoint_retention.note_use(store, manifest, by=by)
    except (ElasticError, OSError) as error:
        log.debug("who has loaded checkpoint %d is not recorded: %s", manifest.step, error)


def _this_process(uri: str) -> str | None:
    env = os.environ
    if run := env.get("AIRFLOW_ELASTIC_RUN_URI"):
        own = open_store(run).uri
        return f"run {own}" if own != uri and env.get("RANK", "0") == "0" else None
    names = [env.get(f"AIRFLOW_CTX_{part}") for part in ("DAG_ID", "TASK_ID", "DAG_RUN_ID")]
    if all(names[:2]):
        dag, task, run_id = names
        return f"task {task} of DAG {dag}" + (f", run {run_id}" if run_id else "")
    return None
