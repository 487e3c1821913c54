"""What scripts/steps.py wrote down while it trained: whether two attempts, or a rank twice, have ever lived at once."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store


def trained_once(uri: Path) -> None:
    """Attempts follow each other, each from the newest checkpoint before it, and no rank does a step twice in one."""
    store = open_store(str(uri))
    lines = [json.loads(line) for line in (uri / "trace.jsonl").read_text().splitlines()]
    assert [line["attempt"] for line in lines] == sorted(line["attempt"] for line in lines), (
        "attempts overlap"
    )
    for number, of_attempt in itertools.groupby(lines, key=lambda line: line["attempt"]):
        found = list(of_attempt)
        # Ranks of this script do not meet: another one may come late, and find what the first has committed since.
        starts = [line["step"] for line in found if (line["what"], line["rank"]) == ("start", 0)]
        # What was committed when an attempt began is what it began from.
        newest = max([0, *_committed_before(store, number)])
        assert set(starts) == {newest}, f"attempt {number} began from {starts}, and not from {newest}"
        pairs = [(line["rank"], line["step"]) for line in found if line["what"] == "step"]
        assert len(pairs) == len(set(pairs)), "a rank of one attempt did a step twice: two of it have lived"


def _committed_before(store: Store, attempt: int) -> list[int]:
    steps = checkpoints.steps(store)
    return [step for step in steps if checkpoints.read(store, step).attempt < attempt]
