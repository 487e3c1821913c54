"""Checkpoints are removed (`pruning`), pinned, or set aside (`quarantine`).

`readings` records who has read them, `evaluations` what was measured of them.
"""

from airflow_elastic.adapters.records.checkpoint_retention.evaluations import (
    all_evaluations,
    evaluations,
    measured,
    note_evaluation,
)
from airflow_elastic.adapters.records.checkpoint_retention.pruning import (
    Pin,
    own_steps,
    pin,
    pinned,
    pins,
    prune,
    remove_uncommitted,
    to_prune,
    uncommitted,
    unpin,
    without_best,
)
from airflow_elastic.adapters.records.checkpoint_retention.quarantine import (
    quarantine,
    quarantined,
    resumed_by,
    set_aside,
    set_newer_aside,
)
from airflow_elastic.adapters.records.checkpoint_retention.readings import (
    all_uses,
    note_use,
    note_verified,
    readings,
    uses,
    verified,
)

__all__ = [
    "Pin",
    "all_evaluations",
    "all_uses",
    "evaluations",
    "measured",
    "note_evaluation",
    "note_use",
    "note_verified",
    "own_steps",
    "pin",
    "pinned",
    "pins",
    "prune",
    "quarantine",
    "quarantined",
    "readings",
    "remove_uncommitted",
    "resumed_by",
    "set_aside",
    "set_newer_aside",
    "to_prune",
    "uncommitted",
    "unpin",
    "uses",
    "verified",
    "without_best",
]
