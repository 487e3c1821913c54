"""The promoted models: a card each, and the newest one is the model that is promoted now.

- `models/0001.json`: a card with the model's accuracy, its origin and the place of its weights.
- `weights/<sha256>.pt`: copies of weights, so the run that they come from may remove its checkpoints.

These files never change. If several tasks create the same card, only one succeeds: comparing and promoting are one
step, in a folder and on S3.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

_CARDS = "models/"


class NotBetter(Exception):
    """The candidate does not beat the promoted model."""


def current(home: Store) -> dict[str, Any] | None:
    """The card of the promoted model; None as long as there is none."""
    cards = [entry.key for entry in home.list(_CARDS)]
    return json.loads(home.get(cards[-1]) or b"null") if cards else None


def promote(home: Store, candidate: Mapping[str, Any]) -> dict[str, Any]:
    """Promote a candidate, as `evaluation.evaluate` returns it, and return its card.

    Raises:
        NotBetter: the promoted model is as good, or better; says so in a sentence.
        ValueError: the weights are not those that were measured.
    """
    weights = home.get(candidate["weights"].removeprefix(f"{home.uri}/"))
    if weights is None or hashlib.sha256(weights).hexdigest() != candidate["sha256"]:
        raise ValueError(f"{candidate['weights']} is not the file that was measured: evaluate it again")
    while True:
        before = current(home)
        if before and (before["run_uri"], before["sha256"]) == (candidate["run_uri"], candidate["sha256"]):
            return before  # promoted by a try of this task that did not get to say so
        if before and candidate["accuracy"] <= before["accuracy"]:
            raise NotBetter(
                f"accuracy {candidate['accuracy']:.4f} does not beat {before['accuracy']:.4f} of the promoted model "
                f"{before['model']}, which stays"
            )
        name = f"{int(before['model']) + 1 if before else 1:04d}"
        card = {
            **candidate,
            "model": name,
            "previous": before and before["model"],
            "promoted_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if home.create(f"{_CARDS}{name}.json", json.dumps(card, indent=1).encode()):
            return card
        # Another task has promoted one in between: compare with that.
