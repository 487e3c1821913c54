"""The baseline: how many old offences a file may still have. The numbers may only fall."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

BASELINE = Path(__file__).with_name("baseline.json")


def read(path: Path = BASELINE) -> dict[str, int]:
    """The offences that are allowed, by file."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def exceeding(counts: Mapping[str, int], allowed: Mapping[str, int]) -> dict[str, int]:
    """By how much files exceed their numbers; empty as long as the sum of all files does not exceed theirs.

    So a file may be moved, renamed or split without a change of the baseline.
    """
    if sum(counts.values()) <= sum(allowed.values()):
        return {}
    return {
        name: count - allowed.get(name, 0) for name, count in counts.items() if count > allowed.get(name, 0)
    }


def lowered(counts: Mapping[str, int], allowed: Mapping[str, int]) -> dict[str, int] | None:
    """The new baseline: the counts of now. None where their sum would rise, as then somebody has written new ones."""
    rises = allowed and sum(counts.values()) > sum(allowed.values())
    return None if rises else {name: count for name, count in sorted(counts.items()) if count}


def write(baseline: Mapping[str, int], path: Path = BASELINE) -> None:
    """A file a line, so that two branches can both lower numbers."""
    path.write_text(json.dumps(dict(baseline), indent=1) + "\n")
