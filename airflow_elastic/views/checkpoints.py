"""All checkpoints of a run, also damaged ones and those that storage does not have yet."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import encode
from airflow_elastic.views.cache import Reader, Snapshot

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.checkpoints.manifest import Manifest

_AGE, _FOREVER = 5.0, float("inf")


class _Manifests:
    """Manifests that were read. They never change, so each is read once; damaged ones are read again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, dict[str, Any]] = {}

    def rows(self, store: Store, steps: list[int]) -> list[dict[str, Any]]:
        """One row for each step, without what may change."""
        with self._lock:
            new = [step for step in steps if step not in self._known]
            found = checkpoints.at_once(lambda step: self._read(store, step), new) if new else []
            kept = {step: row for step, row in self._known.items() if step in set(steps)}
            read = dict(zip(new, found, strict=True))
            self._known = {**kept, **{step: row for step, row in read.items() if row["damaged"] is None}}
            return [kept.get(step) or read[step] for step in steps]

    @staticmethod
    def _read(store: Store, step: int) -> dict[str, Any]:
        try:
            return _row(checkpoints.read(store, step))
        except CheckpointDamaged as error:
            return _damaged(step, str(error))


def listed(reader: Reader) -> dict[str, Any]:
    """Every checkpoint, the newest first.

    `tiers` says which of storage and memory have it. `verified`: it is the last one that ranks have read back in full.
    `damaged`: what is wrong with it; it is not used any more.
    """
    snapshot = reader.snapshot()
    rows = reader.kept("checkpoints", lambda: _rows(reader, snapshot), _AGE)
    ages = [{**row, "age_seconds": None if row["at"] is None else snapshot.at - row["at"]} for row in rows]
    return {"at": snapshot.at, "checkpoints": ages}


def _rows(reader: Reader, snapshot: Snapshot) -> list[dict[str, Any]]:
    store = reader.store
    manifests: _Manifests = reader.kept("manifests", _Manifests, _FOREVER)
    steps = checkpoints.steps(store)
    pins, verified = _pins(store), checkpoint_retention.verified(store)
    metric = _best(snapshot)
    rows = [
        {
            **row,
            "metric": row["metrics"].get(metric) if metric else None,
            "verified": row["step"] == verified,
            "pinned": pins.get(row["step"]),
        }
        for row in manifests.rows(store, steps)
    ]
    rows += [_damaged(step, reason) for step, reason in checkpoint_retention.quarantined(store).items()]
    rows += _unwritten(snapshot, steps)
    return sorted(rows, key=lambda row: (-row["step"], row["damaged"] is not None))


def _row(manifest: Manifest) -> dict[str, Any]:
    return {
        **_EMPTY,
        "step": manifest.step,
        "at": manifest.created_at,
        "bytes": sum(file.size for file in manifest.files),
        "tiers": ["storage"],
        "attempt": manifest.attempt,
        "world_size": manifest.world_size,
        "epoch": manifest.epoch,
        "reason": manifest.reason,
        "metrics": dict(manifest.metrics),
        "phases": [encode(phase) for phase in manifest.phases],
    }


_EMPTY: dict[str, Any] = {
    "at": None,
    "bytes": None,
    "tiers": [],
    "attempt": None,
    "world_size": None,
    "epoch": None,
    "reason": None,
    "metric": None,
    "metrics": {},
    "phases": [],
    "verified": False,
    "verified_at": None,
    "pinned": None,
    "used_by": [],
    "damaged": None,
}


def _damaged(step: int, reason: str) -> dict[str, Any]:
    return {**_EMPTY, "step": step, "damaged": reason}


def _unwritten(snapshot: Snapshot, steps: list[int]) -> list[dict[str, Any]]:
    """The newest state that ranks have saved, as long as workers alone have it."""
    told = snapshot.progress
    live = not snapshot.state.ended and told is not None and told.attempt == snapshot.state.attempt.number
    if not live or told is None or told.saved <= max(steps, default=0):
        return []
    return [{**_EMPTY, "step": told.saved, "tiers": ["memory"], "attempt": told.attempt}]


def _pins(store: Store) -> dict[int, dict[str, Any]]:
    found = {}
    for step in checkpoint_retention.pinned(store):
        found[step] = {"by": None, "at": None}
        with suppress(ValueError):
            record = json.loads(store.get(layout.pin(step)) or b"null")
            if isinstance(record, dict):
                found[step] = {"by": record.get("by"), "at": record.get("at")}
    return found


def _best(snapshot: Snapshot) -> str | None:
    """The metric by which checkpoints are kept, if one is."""
    kept = snapshot.state.spec.checkpoint.keep_best
    return None if kept is None else kept.split()[1]
