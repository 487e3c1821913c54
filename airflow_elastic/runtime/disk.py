"""A worker's states on the disk of its own machine, where they outlive its agent, its pod, and a reboot.

Below the folder that the user has named: `airflow-elastic-<digest of the run URI>/node-3/`, and there the files and the
word of its part as in the run's storage, under the same keys. No state there is a checkpoint: that it becomes in
storage, once all parts of it have been found (`recovering`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import mmap
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.adapters import checksums
from airflow_elastic.adapters.folder import FolderStore
from airflow_elastic.adapters.parts import Part
from airflow_elastic.runtime.writing import manifest_of, write_files
from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import SpecError, StoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from airflow_elastic.runtime.slots import Note, Slot
    from airflow_elastic.spec.manifest import Manifest

log = logging.getLogger(__name__)

#: States that stay: a worker may have come further than another one.
KEEP = 2

#: What a run has left behind for so long is taken for forgotten.
FORGOTTEN_SECONDS = 7 * 86400.0

_NAME = "airflow-elastic-"


class Disk:
    """What workers of a run have on the disk of one machine, seen from one of them.

    Args:
        folder: the one that the user has named.
        run_uri: of the run.
        index: number of the worker.
    """

    def __init__(self, folder: str, run_uri: str, index: int) -> None:
        self._folder, self._root = Path(folder), _root(folder, run_uri)
        self._mine = FolderStore(self._root / f"node-{index}")
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Remove what other runs have forgotten. Raises StoreError where the disk cannot be used."""
        self._check()
        for other in self._folder.glob(f"{_NAME}*"):
            times = [path.stat().st_mtime for path in (other, *other.glob(f"*/{layout.CHECKPOINT_DATA}"))]
            if other != self._root and max(times) < time.time() - FORGOTTEN_SECONDS:
                shutil.rmtree(other, ignore_errors=True)

    def write(self, held: Sequence[tuple[Slot, Note]], part: int, of: int, attempt: int) -> None:
        """Write what the ranks of this worker have staged, and remove what is older than the one before.

        Args:
            held: slots, held for reading, with what they hold.
            part: number of this worker among those that train.
            of: how many these are.
            attempt: number of theirs.

        Raises:
            StoreError: the disk has failed, or is full.
        """
        note = held[0][1]
        data = layout.checkpoint_data(note.step, attempt, note.generation)
        self._check()
        with self._lock:
            files = write_files(self._mine, held, data, attempt)
            word = Part(part, of, manifest_of(note, attempt, data, files))
            self._mine.put(word.key, json.dumps(encode(word)).encode())
            for folder in sorted(Path(self._mine.uri, layout.CHECKPOINT_DATA).iterdir())[:-KEEP]:
                self._remove(folder)

    def found(self, newest: int) -> Iterator[tuple[FolderStore, Part]]:
        """The parts of states after step `newest`, of whichever worker, that are byte for byte what was written."""
        for folder in sorted(self._root.glob("node-*")):
            store = FolderStore(folder)
            for path in sorted(folder.glob(f"{layout.CHECKPOINT_DATA}*/part-*.json")):
                try:
                    part = decode(Part, json.loads(path.read_bytes()))
                    if part.manifest.step > newest and _is_whole(store, part.manifest):
                        yield store, part
                except (OSError, ValueError, SpecError) as error:
                    log.warning("%s cannot be read: %s", path, error)

    def settle(self, found: FolderStore, old: str, new: str) -> None:
        """What was found is in storage now, in another folder: files here are to be found by its name, too.

        Args:
            found: where.
            old: folder of the data.
            new: that in storage.
        """
        target = Path(self._mine.uri, new)
        with self._lock, contextlib.suppress(OSError):
            target.mkdir(parents=True, exist_ok=True)
            for path in Path(found.uri, old).glob("rank-*"):
                path.rename(target / path.name)

    def tidy(self, kept: Collection[str]) -> None:
        """Remove everything of this run, but for these folders of data. While no worker writes."""
        names = {data.rstrip("/").rpartition("/")[2] for data in kept}
        for folder in self._root.glob(f"node-*/{layout.CHECKPOINT_DATA}*"):
            if folder.name not in names:
                self._remove(folder)

    def clear(self) -> None:
        """Remove what this worker has written."""
        with self._lock:
            shutil.rmtree(self._mine.uri, ignore_errors=True)
        for folder in (*sorted(self._root.rglob("*"), reverse=True), self._root):
            with contextlib.suppress(OSError):  # another worker's, who may need it
                folder.rmdir()

    def _check(self) -> None:
        """A folder that is not there is not made: what is meant to be mounted there would be elsewhere."""
        if not self._folder.is_dir():
            raise StoreError(
                f"there is no folder {self._folder} on this machine: mount one, or name another as checkpoint.disk"
            )

    def _remove(self, folder: Path) -> None:
        """One state's files, and what was told of its samples."""
        shutil.rmtree(folder, ignore_errors=True)
        step = folder.name.partition("-")[0]
        for account in folder.parents[2].glob(f"{layout.SAMPLES}*/*/{step}-*"):
            account.unlink(missing_ok=True)


def on_disk(folder: str, run_uri: str, manifest: Manifest) -> dict[str, Path]:
    """Where files of a checkpoint lie on this machine's own disk, by their keys; those that do."""
    found: dict[str, Path] = {}
    for store in _root(folder, run_uri).glob("node-*"):
        for file in manifest.files:
            with contextlib.suppress(OSError):
                if (path := store / file.key).stat().st_size == file.size:
                    found[file.key] = path
    return found


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """A file's bytes. Raises OSError."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory, memoryview(memory) as data:
            yield data


def _root(folder: str, run_uri: str) -> Path:
    return Path(folder, f"{_NAME}{hashlib.sha256(run_uri.encode()).hexdigest()[:16]}")


def _is_whole(store: FolderStore, manifest: Manifest) -> bool:
    for file in manifest.files:
        expected: Mapping[str, str] = file.checksums
        with mapped(Path(store.uri, file.key)) as data:
            if len(data) != file.size or checksums.of(data) != expected.get(checksums.ALGORITHM):
                log.warning("%s/%s is not what was written", store.uri, file.key)
                return False
    return True
