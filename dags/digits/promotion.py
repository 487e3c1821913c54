"""The promoted models: a folder each, and a file that names the current one.

models/0001/model.pt     the weights
models/0001/card.json    its card: how good it is, and where it comes from
models/current.json      the card of the model that is promoted now

Nothing but current.json is ever changed, and that is replaced at once: a reader always finds a whole model. The weights
are copies, so the run that they come from may remove its checkpoints.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class NotBetter(Exception):
    """The candidate does not beat the promoted model."""


def current(models: Path) -> dict[str, Any] | None:
    """The card of the promoted model; None as long as there is none."""
    try:
        card: dict[str, Any] = json.loads((models / "current.json").read_text())
    except FileNotFoundError:
        return None
    return card


def promote(models: Path, candidate: Mapping[str, Any]) -> dict[str, Any]:
    """Promote a candidate, as `evaluation.evaluate` returns it, and return its card.

    Raises:
        NotBetter: the promoted model is as good, or better; says so in a sentence.
        ValueError: the weights are not those that were measured.
    """
    with _alone(models):
        before = current(models)
        if before and (before["run_uri"], before["sha256"]) == (candidate["run_uri"], candidate["sha256"]):
            return before  # promoted by a try of this task that did not get to say so
        if before and candidate["accuracy"] <= before["accuracy"]:
            raise NotBetter(
                f"accuracy {candidate['accuracy']:.4f} does not beat {before['accuracy']:.4f} of the promoted model "
                f"{before['model']}, which stays"
            )
        return _publish(models, candidate, before)


def _publish(models: Path, candidate: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    name = f"{_last(models) + 1:04d}"
    card = {
        **candidate,
        "model": name,
        "weights": str(models / name / "model.pt"),
        "previous": before and before["model"],
        "promoted_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with tempfile.TemporaryDirectory(prefix=".new-", dir=models) as temporary:
        new, current = Path(temporary, name), Path(temporary, "current.json")
        new.mkdir()
        shutil.copyfile(candidate["weights"], new / "model.pt")
        if hashlib.sha256((new / "model.pt").read_bytes()).hexdigest() != candidate["sha256"]:
            raise ValueError(f"{candidate['weights']} is not the file that was measured: evaluate it again")
        for path in (new / "card.json", current):
            path.write_text(json.dumps(card, indent=1))
        _to_disk(new / "model.pt", new / "card.json", new, current)
        new.rename(models / name)
        current.replace(models / "current.json")
    _to_disk(models)
    return card


def _last(models: Path) -> int:
    """The number of the newest model, also of one whose promotion was cut short."""
    return max((int(path.name) for path in models.iterdir() if path.name.isdigit()), default=0)


@contextmanager
def _alone(models: Path) -> Iterator[None]:
    """Let no other task promote meanwhile: comparing and replacing are one step."""
    models.mkdir(parents=True, exist_ok=True)
    with (models / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _to_disk(*paths: Path) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
