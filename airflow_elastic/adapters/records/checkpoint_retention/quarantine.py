"""Checkpoints that are set aside: damaged ones, and those after a step from which somebody resumes.

A quarantined checkpoint does not exist any more for ranks. Its files stay until newer checkpoints are there.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.records import checkpoints, journal
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.records.mailbox import CheckpointTrouble, Mailbox
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_elastic.adapters.storage.store import Store


def quarantine(store: Store, step: int, reason: str) -> None:
    """Set a damaged checkpoint aside. It does not exist any more, and its step can be saved again. Its files stay."""
    manifest = store.get(layout.manifest(step))
    record = {"step": step, "reason": reason, "manifest": (manifest or b"").decode(errors="replace")}
    store.put(layout.quarantined(step), json.dumps(record, indent=1).encode())
    store.delete([layout.manifest(step)])


def set_aside(store: Store, trouble: CheckpointTrouble, *, by: str) -> None:
    """Set a damaged checkpoint aside, and report it to the controller.

    Args:
        store: where the run is stored.
        trouble: the checkpoint, what is wrong with it, and the one before.
        by: the worker that found it.
    """
    mailbox = Mailbox(store)
    # Report it twice. Before, because this process may be killed after the next line. And after, because a controller
    # that looks in between still finds it among the checkpoints.
    mailbox.post("damaged", by=by, checkpoint=trouble)
    quarantine(store, trouble.step, trouble.reason)
    mailbox.post("damaged", by=by, checkpoint=trouble)


def set_newer_aside(store: Store, step: int, *, attempt: int, reason: str) -> list[int]:
    """Set the checkpoints of earlier attempts after this step aside, so that this attempt goes on from it.

    It may be called again: what the attempt itself has saved stays. Afterwards `resumed_by` says that copies of
    earlier attempts, on disks of workers, do not count either. Earlier attempts must not be able to commit any more.

    Args:
        store: where the run is stored.
        step: of the checkpoint to go on from.
        attempt: number of the attempt that goes on.
        reason: for those who look at the checkpoints that were set aside.

    Returns:
        The steps of those, oldest first.

    Raises:
        CheckpointDamaged: the checkpoint of `step` cannot be read. Nothing was changed.
    """
    checkpoints.read(store, step)
    run = journal.identity(store)
    store.put(layout.RESUMED, json.dumps({"run": run, "attempt": attempt, "step": step}).encode())

    def is_new(newer: int) -> bool:
        try:
            manifest = checkpoints.read(store, newer)
        except CheckpointDamaged:
            return False
        return manifest.run == run and manifest.attempt >= attempt

    aside = [newer for newer in checkpoints.steps(store) if newer > step and not is_new(newer)]
    for newer in reversed(aside):
        quarantine(store, newer, reason)
    return aside


def resumed_by(store: Store) -> int:
    """The last attempt that went on from a chosen checkpoint: states of earlier attempts do not count. 0: none did."""
    with contextlib.suppress(ValueError):
        record = json.loads(store.get(layout.RESUMED) or b"null")
        if isinstance(record, dict) and record.get("run") == journal.identity(store):  # it may be copied
            return record["attempt"] if type(record.get("attempt")) is int else 0
    return 0


def quarantined(store: Store) -> dict[int, str]:
    """What is wrong with the checkpoints that were set aside, by step."""
    return {step: str(record.get("reason")) for step, record in quarantine_records(store)}


def quarantine_records(store: Store) -> Iterable[tuple[int, dict[str, Any]]]:
    """The records of the checkpoints that were set aside, by step."""
    for step in checkpoints.steps_below(store, layout.QUARANTINE):
        with contextlib.suppress(ValueError):
            record = json.loads(store.get(layout.quarantined(step)) or b"{}")
            yield step, record if isinstance(record, dict) else {}


def data_of(step: int, record: dict[str, Any]) -> str | None:
    """The folder of a quarantined checkpoint's files, if its manifest can be read and belongs to this step.

    A copied manifest names files that may still be needed.
    """
    try:
        manifest = checkpoints.parse_manifest(str(record.get("manifest", "")).encode())
        checkpoints.check_place(manifest, step, "what was set aside")
    except CheckpointDamaged:
        return None
    return manifest.data
