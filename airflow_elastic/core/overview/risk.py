"""What a run would lose if it died now: the steps since its newest checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def at_risk(document: Mapping[str, Any], pace: float | None) -> dict[str, float]:
    """Steps that no checkpoint in storage has, and how many seconds it takes to repeat them.

    Args:
        document: the status document.
        pace: seconds per step; None if unknown.
    """
    if document.get("outcome") == "succeeded":
        return {"steps": 0, "seconds": 0.0}
    newest = (document.get("checkpoints") or {}).get("newest")
    saved = newest["step"] if newest else 0
    steps = max(0, reached(document) - saved)
    return {"steps": steps, "seconds": steps * (pace or 0.0)}


def reached(document: Mapping[str, Any]) -> int:
    """The newest step that is known. After a failure without a checkpoint, the one that was lost with it."""
    attempts = document.get("attempts") or [{}]
    return max(document.get("step") or 0, attempts[-1].get("last_step") or 0)
