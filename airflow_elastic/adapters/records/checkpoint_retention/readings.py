"""Records of who has read a checkpoint: to verify it (`checkpoints/verified.json`), or to use it (`checkpoints/uses/`).

Two processes that write at the same moment may lose one of the two readings. Nothing is decided by them, except for the
step in `verified.json`, which is kept.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.readings import Reading, Uses, Verified
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.checkpoints.manifest import Manifest

#: The most uses of one checkpoint that are kept: the newest.
MOST_USES = 100


def note_verified(
    store: Store, step: int | None, *, at: float | None = None, by: str = "ranks", also: Iterable[int] = ()
) -> None:
    """Record the checkpoint that was read from storage in full, and verified: retention keeps it.

    It counts until the next record. None, or a step that is not there any more: no checkpoint counts.

    Args:
        store: where the run is stored.
        step: of the checkpoint.
        at: when it was read, epoch seconds. Default: now.
        by: who has read it, in words.
        also: steps of other checkpoints that were verified as well. Retention may remove them.
    """
    if step is None:
        return
    there = set(checkpoints.steps(store))
    if step not in there:
        return
    at = time.time() if at is None else at
    known, whole = _read(store), checkpoints.readable(store, sorted(there & {step, *also}))
    newer = {str(one.step): Reading(by, at, one.data) for one in whole}
    kept = {name: one for name, one in known.readings.items() if int(name) in there} if known else {}
    now = Verified(step, {**kept, **newer})
    if now != known:
        store.put(layout.VERIFIED, json.dumps(encode(now)).encode())


def verified(store: Store) -> int | None:
    """The step of the last checkpoint that was verified so, and that retention keeps."""
    known = _read(store)
    return known.step if known else None


def readings(store: Store) -> tuple[int | None, dict[int, Reading]]:
    """The step that `verified` returns, and when each checkpoint was last verified, as far as is recorded."""
    known = _read(store)
    return (known.step, {int(name): one for name, one in known.readings.items()}) if known else (None, {})


def note_use(store: Store, manifest: Manifest, *, by: str) -> None:
    """Record that somebody outside of the run uses a checkpoint. Who has used it before is not recorded again."""
    known = uses(store, manifest.step)
    if any((one.by, one.data) == (by, manifest.data) for one in known):
        return
    now = Uses((*known, Reading(by, time.time(), manifest.data))[-MOST_USES:])
    store.put(layout.uses(manifest.step), json.dumps(encode(now)).encode())


def uses(store: Store, step: int) -> tuple[Reading, ...]:
    """Who has used the checkpoint of a step outside of its run, oldest first."""
    try:
        return decode(Uses, json.loads(store.get(layout.uses(step)) or b"{}")).uses
    except (ValueError, SpecError):
        return ()


def all_uses(store: Store) -> dict[int, tuple[Reading, ...]]:
    """The same for all checkpoints that have any."""
    steps = checkpoints.steps_below(store, layout.USES)
    return dict(zip(steps, checkpoints.at_once(lambda step: uses(store, step), steps), strict=True))


def _read(store: Store) -> Verified | None:
    try:
        plain = json.loads(store.get(layout.VERIFIED) or b"null")
        if not isinstance(plain, dict):
            return None
        found = decode(Verified, plain)
    except (ValueError, SpecError):
        return None
    return found if _are_steps(found.readings) else Verified(found.step)


def _are_steps(readings: Mapping[str, Reading]) -> bool:
    return all(name.isdecimal() for name in readings)
