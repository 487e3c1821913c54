"""Checkpoints are removed (`pruning`), pinned, or set aside (`quarantine`)."""

from airflow_elastic.adapters.records.checkpoint_retention.pruning import (
    note_verified,
    own_steps,
    pin,
    pinned,
    prune,
    remove_uncommitted,
    to_prune,
    uncommitted,
    unpin,
    verified,
    without_best,
)
from airflow_elastic.adapters.records.checkpoint_retention.quarantine import (
    quarantine,
    quarantined,
    resumed_by,
    set_aside,
    set_newer_aside,
)

__all__ = [
    "note_verified",
    "own_steps",
    "pin",
    "pinned",
    "prune",
    "quarantine",
    "quarantined",
    "remove_uncommitted",
    "resumed_by",
    "set_aside",
    "set_newer_aside",
    "to_prune",
    "uncommitted",
    "unpin",
    "verified",
    "without_best",
]
