"""Checkpoints are removed, protected and set aside, and others have notes about them.

- `pruning`: they are removed. `pins`: they are protected from that. `quarantine`: damaged ones are set aside.
- `readings`: who has read them. `evaluations`: what was measured of them.
"""

from airflow_elastic.adapters.records.checkpoint_retention.evaluations import (
    all_evaluations,
    evaluations,
    measured,
    note_evaluation,
)
from airflow_elastic.adapters.records.checkpoint_retention.pins import (
    Pin,
    is_pinned_by,
    pin,
    pinned,
    pins,
    release,
    unpin,
)
from airflow_elastic.adapters.records.checkpoint_retention.pruning import (
    own_steps,
    prune,
    remove_uncommitted,
    to_prune,
    uncommitted,
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
    "is_pinned_by",
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
    "release",
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
