"""All checkpoints of a run, also damaged ones and those that storage does not have yet."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.core.checkpoints.users import SavedBy, on_disks, users
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.training.early_stop import retention
from airflow_elastic.views.cache import Reader, Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_elastic.adapters.records.checkpoint_retention import Pin
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.checkpoints.evaluation import Evaluation
    from airflow_elastic.spec.checkpoints.manifest import Manifest
    from airflow_elastic.spec.checkpoints.readings import Reading

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

    `tiers`: which of storage, memory and disk have it; of the latter two, as workers have last said. `verified`: it is
    the last one that was read back in full; `verified_at` and `verified_by` are known for others as well. `used_by`:
    who went on from it. `evaluations`: what was measured of it later, by which run. `damaged`: what is wrong with
    it; it is not used any more.
    """
    snapshot = reader.snapshot()
    rows = reader.kept("checkpoints", lambda: _rows(reader, snapshot), _AGE)
    ages = [{**row, "age_seconds": None if row["at"] is None else snapshot.at - row["at"]} for row in rows]
    return {"at": snapshot.at, "checkpoints": ages}


def _rows(reader: Reader, snapshot: Snapshot) -> list[dict[str, Any]]:
    store = reader.store
    manifests: _Manifests = reader.kept("manifests", _Manifests, _FOREVER)
    steps = checkpoints.steps(store)
    beside = _Beside.read(store)
    rows = [beside.added(row, snapshot) for row in manifests.rows(store, steps)]
    rows += [_damaged(step, reason) for step, reason in checkpoint_retention.quarantined(store).items()]
    rows += _unwritten(snapshot, steps)
    told = [{name: value for name, value in row.items() if name not in _HIDDEN} for row in rows]
    return sorted(told, key=lambda row: (-row["step"], row["damaged"] is not None))


@dataclass(frozen=True, slots=True)
class _Beside:
    """What is recorded beside the checkpoints, and may change."""

    pins: Mapping[int, Pin]
    verified: int | None
    readings: Mapping[int, Reading]
    uses: Mapping[int, tuple[Reading, ...]]
    evaluations: Mapping[int, list[Evaluation]]

    @classmethod
    def read(cls, store: Store) -> _Beside:
        verified, readings = checkpoint_retention.readings(store)
        uses = checkpoint_retention.all_uses(store)
        told = checkpoint_retention.all_evaluations(store)
        return cls(checkpoint_retention.pins(store), verified, readings, uses, told)

    def added(self, row: dict[str, Any], snapshot: Snapshot) -> dict[str, Any]:
        """The row with what may change."""
        step, saved = row["step"], row["saved"]
        if saved is None:  # damaged
            return {**row, "pinned": self._pinned(step)}
        metric, read = _best(snapshot), self.readings.get(step)
        if read is not None and read.data != saved.data:  # this step was saved again since
            read = None
        return {
            **row,
            "tiers": [*row["tiers"], *_near(saved, snapshot)],
            "metric": row["metrics"].get(metric) if metric else None,
            "verified": step == self.verified,
            "verified_at": read and read.at,
            "verified_by": read and read.by,
            "pinned": self._pinned(step),
            "evaluations": [
                {"metrics": dict(one.metrics), "at": one.at, "by": one.by}
                for one in self.evaluations.get(step, ())
                if one.data == saved.data
            ],
            "used_by": users(saved, snapshot.state, snapshot.progress, self.uses.get(step, ())),
        }

    def _pinned(self, step: int) -> dict[str, Any] | None:
        pin = self.pins.get(step)
        return None if pin is None else {"by": pin.by, "at": pin.at}


def _near(saved: SavedBy, snapshot: Snapshot) -> list[str]:
    """The tiers of workers that have a state of storage, too."""
    told, state = snapshot.progress, snapshot.state
    folder = saved.data.rstrip("/").rpartition("/")[2]
    live = not state.ended and told is not None and told.attempt == state.attempt.number == saved.attempt
    near = ["memory"] if live and told is not None and told.saved == saved.step else []
    return [*near, "disk"] if folder in on_disks(state, told) else near


def _row(manifest: Manifest) -> dict[str, Any]:
    return {
        **_EMPTY,
        "step": manifest.step,
        "at": manifest.created_at,
        "bytes": sum(file.size for file in manifest.files),
        "tiers": ["storage"],
        "saved": SavedBy(manifest.step, manifest.attempt, manifest.generation, manifest.data),
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
    "verified_by": None,
    "pinned": None,
    "evaluations": [],
    "used_by": [],
    "damaged": None,
    "saved": None,
}

#: Of a row, for this module alone.
_HIDDEN = {"saved"}


def _damaged(step: int, reason: str) -> dict[str, Any]:
    return {**_EMPTY, "step": step, "damaged": reason}


def _unwritten(snapshot: Snapshot, steps: list[int]) -> list[dict[str, Any]]:
    """The newest state that ranks have saved, as long as workers alone have it."""
    told = snapshot.progress
    live = not snapshot.state.ended and told is not None and told.attempt == snapshot.state.attempt.number
    if not live or told is None or told.saved <= max(steps, default=0):
        return []
    name = f"{told.saved:012d}-a{told.attempt:04d}-"
    on_disk = any(folder.startswith(name) for folder in on_disks(snapshot.state, told))
    tiers = ["memory", "disk"] if on_disk else ["memory"]
    return [{**_EMPTY, "step": told.saved, "tiers": tiers, "attempt": told.attempt}]


def _best(snapshot: Snapshot) -> str | None:
    """The metric by which checkpoints are kept, if one is."""
    spec = snapshot.state.spec
    kept = retention(spec.checkpoint, spec.early_stop).keep_best
    return None if kept is None else kept.split()[1]
