"""Pins: they protect a checkpoint from removal, for as long as anybody has pinned it.

The pin has the name of the first who pinned the checkpoint. Others are recorded beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store


@dataclass(frozen=True, slots=True)
class Pin:
    """Who has pinned a checkpoint, and when, in epoch seconds. None: unknown; earlier releases recorded no time."""

    by: str | None = None
    at: float | None = None


def pin(store: Store, step: int, *, by: str) -> None:
    """Protect a checkpoint from removal, because somebody refers to it.

    Raises:
        CheckpointDamaged: there is none, its manifest cannot be read, or it is being removed.
    """
    record = json.dumps({"by": by, "at": time.time()}).encode()
    new = store.create(layout.pin(step), record)
    if not new:
        new = _join(store, step, by, record)
    try:
        checkpoints.read(store, step)  # only now: until it is pinned it may be removed
    except CheckpointDamaged:
        if new:
            release(store, step, by=by)
        raise


def _join(store: Store, step: int, by: str, record: bytes) -> bool:
    """Pin a checkpoint that somebody else has pinned. Returns whether this is new."""
    there = store.get(layout.pin(step))
    if is_claim(there):
        raise CheckpointDamaged(f"the checkpoint of step {step} in {store.uri} is being removed")
    if there is not None and _pin(there).by == by:
        return False
    key = _beside(step, by)
    if store.get(key) is not None:
        return False
    store.put(key, record)
    # The other one may have released it meanwhile.
    if not store.create(layout.pin(step), record) and is_claim(store.get(layout.pin(step))):
        store.delete([key])
        raise CheckpointDamaged(f"the checkpoint of step {step} in {store.uri} is being removed")
    return True


def unpin(store: Store, step: int) -> None:
    """Let the policy decide about a checkpoint again, also if others have pinned it."""
    beside = [entry.key for entry in store.list(layout.other_pins(step))]
    store.delete([*beside, layout.pin(step)])


def release(store: Store, step: int, *, by: str) -> None:
    """Take back a pin. The checkpoint stays pinned if others have pinned it."""
    store.delete([_beside(step, by)])
    there = store.get(layout.pin(step))
    if there is None or is_claim(there) or _pin(there).by != by:
        return
    if _inherit(store, step):
        return
    store.delete([layout.pin(step)])
    _inherit(store, step)  # somebody may have pinned it meanwhile, and seen the former pin


def _inherit(store: Store, step: int) -> bool:
    """Give the pin to one of the others. Returns whether there is one."""
    for entry in store.list(layout.other_pins(step)):
        record = store.get(entry.key)
        if record is not None:
            store.put(layout.pin(step), record)
            return True
    return False


def is_pinned_by(store: Store, step: int, by: str) -> bool:
    """Whether this one has pinned a checkpoint."""
    there = store.get(layout.pin(step))
    is_first = there is not None and not is_claim(there) and _pin(there).by == by
    return is_first or store.get(_beside(step, by)) is not None


def _beside(step: int, by: str) -> str:
    return f"{layout.other_pins(step)}{hashlib.sha256(by.encode()).hexdigest()[:16]}.json"


def pinned(store: Store) -> list[int]:
    """The steps that are pinned."""
    return list(pins(store))


def pins(store: Store) -> dict[int, Pin]:
    """Who has pinned which steps, and when."""
    found = {}
    for step in checkpoints.steps_below(store, layout.PINS):
        data = store.get(layout.pin(step))
        if not is_claim(data):
            found[step] = _pin(data)
    return found


def _pin(data: bytes | None) -> Pin:
    """What a pin says. Whatever its content is, it protects."""
    with contextlib.suppress(ValueError):
        record = json.loads(data or b"null")
        if isinstance(record, dict):
            by, at = record.get("by"), record.get("at")
            when = float(at) if isinstance(at, int | float) and not isinstance(at, bool) else None
            return Pin(by if isinstance(by, str) else None, when)
    return Pin()


def claim(data: str) -> bytes:
    """A claim: it takes the key of a pin while a checkpoint is removed, so a pin and a removal exclude each other.

    It names the folder of the files, so that a removal can be finished after the manifest is gone; and its own time.
    """
    return json.dumps({"removing": data, "at": time.time()}).encode()


def claimed(pin: bytes | None) -> tuple[str, float] | None:
    """The folder of the files, and the time of the claim, for a checkpoint that is being removed; None for a pin."""
    with contextlib.suppress(ValueError):
        record = json.loads(pin or b"null")
        if isinstance(record, dict) and isinstance(record.get("removing"), str):
            at = record.get("at")
            return record["removing"], at if isinstance(at, int | float) else 0.0
    return None


def is_claim(pin: bytes | None) -> bool:
    """Whether this is the claim of a removal, and no pin."""
    return claimed(pin) is not None
