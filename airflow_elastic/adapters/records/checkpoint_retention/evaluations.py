"""Records of evaluations: metrics of a checkpoint or a promoted model, measured after it was saved."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.evaluation import Evaluation
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import SpecError

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.checkpoints.manifest import Manifest


def note_evaluation(store: Store, folder: str, evaluation: Evaluation) -> None:
    """Record an evaluation. One of the same id is replaced.

    Args:
        store: of the run, or of the model URI.
        folder: `layout.evaluations` of a step, or that of a promotion.
        evaluation: what was measured.
    """
    store.put(f"{folder}{evaluation.id}.json", json.dumps(encode(evaluation)).encode())


def evaluations(store: Store, folder: str) -> list[Evaluation]:
    """The evaluations in a folder, in the order of their time. Those that cannot be read are left out."""
    keys = [entry.key for entry in store.list(folder)]
    found = [one for one in checkpoints.at_once(lambda key: _parsed(store.get(key)), keys) if one is not None]
    return sorted(found, key=lambda one: one.at)


def all_evaluations(store: Store) -> dict[int, list[Evaluation]]:
    """The evaluations of all checkpoints of a run, by step."""
    keys = [entry.key for entry in store.list(layout.EVALUATIONS)]
    parsed = checkpoints.at_once(lambda key: _parsed(store.get(key)), keys)
    found: dict[int, list[Evaluation]] = {}
    for key, one in zip(keys, parsed, strict=True):
        step = key.removeprefix(layout.EVALUATIONS).partition("/")[0]
        if one is not None and step.isdecimal():
            found.setdefault(int(step), []).append(one)
    return {step: sorted(some, key=lambda one: one.at) for step, some in found.items()}


def measured(store: Store, manifest: Manifest) -> dict[str, float]:
    """All metrics of a checkpoint: those that were saved with it, and what evaluations have measured since."""
    metrics = dict(manifest.metrics)
    for one in evaluations(store, layout.evaluations(manifest.step)):
        if one.data == manifest.data:
            metrics |= one.metrics
    return metrics


def _parsed(data: bytes | None) -> Evaluation | None:
    try:
        return decode(Evaluation, json.loads(data or b"null"))
    except (ValueError, SpecError, RecursionError):
        return None
