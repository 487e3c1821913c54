"""Runs that are kept as files, and that every later version has to read: `tests/fixtures/make_runs.py` writes them.

A stored run names no machine. It is as if it had been written in `/stored/runs`, by scripts in `/stored/scripts`, on a
machine `stored`. Where it is unpacked, these words are replaced by those of the place, in every document but the data
of checkpoints: as nothing there may say where it was written.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.records import checkpoints

STORED = Path(__file__).parents[2] / "fixtures" / "runs"
RUNS, SCRIPTS, PYTHON, MACHINE = "/stored/runs", "/stored/scripts", "/stored/bin/python", "stored/0"


def expected(name: str) -> dict[str, Any]:
    """What its own version told of a run, and what it would have come to."""
    found: dict[str, Any] = json.loads((STORED / f"{name}.json").read_text())
    return found


def unpack(name: str, folder: Path, words: Mapping[str, str]) -> Path:
    """Put a run into a folder as if it had been written there; returns its own folder."""
    with tarfile.open(STORED / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    move(folder / name, f"{RUNS}/{name}", str(folder / name), {RUNS: str(folder), **words})
    return folder / name


def move(run: Path, old: str, new: str, words: Mapping[str, str]) -> None:
    """Have the documents of a run say that it lies elsewhere: its URI, in names of jobs the digest of it, and words."""
    words = {digest(old): digest(new), **words}
    found = re.compile("|".join(sorted(map(re.escape, words), key=len, reverse=True)).encode())
    for path in documents(run):
        data = path.read_bytes()
        changed = found.sub(lambda match: words[match[0].decode()].encode(), data)
        if changed != data:
            path.write_bytes(changed)
    for path in sorted(run.rglob(f"*{digest(old)}*"), reverse=True):
        path.rename(path.with_name(path.name.replace(digest(old), digest(new))))
    _belong(run)


def _belong(run: Path) -> None:
    """Have the manifests name the run as it is now: by a digest of its first event, which has been changed."""
    journal = sorted((run / "journal").iterdir())
    name = hashlib.sha256(journal[0].read_bytes()).hexdigest()[:16]
    for path in (run / "checkpoints" / "manifests").glob("*.json"):
        manifest = {**json.loads(path.read_text()), "run": name}
        manifest.pop("seal")
        path.write_text(json.dumps({**manifest, "seal": checkpoints.checksum_of(manifest)}, indent=1))


def documents(run: Path) -> Iterator[Path]:
    """All files of a run but the data of its checkpoints."""
    data = run / "checkpoints" / "data"
    return (one for one in sorted(run.rglob("*")) if one.is_file() and data not in one.parents)


def digest(uri: str) -> str:
    """What names of a run's jobs have of its URI."""
    return hashlib.sha256(uri.encode()).hexdigest()[:10]


def told(document: Any, *without: str) -> Any:
    """A document without these keys, wherever they are: sentences may be said better, and time goes on."""
    if isinstance(document, dict):
        return {key: told(one, *without) for key, one in document.items() if key not in without}
    return [told(one, *without) for one in document] if isinstance(document, list) else document
