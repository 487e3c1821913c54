"""A worker's states on the disk of its own machine, where they outlive its agent, its pod, and a reboot.

They are in `airflow-elastic-<16 hex digits of the run>/node-3/`, below the folder that the user names. Each has the
same files and the same record of its part as in the run's storage, under the same keys. A state without its record is
incomplete. None of them is a checkpoint: `recovery` makes one in storage, once all parts of a state have been found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checksums
from airflow_elastic.adapters.records.checkpoint_parts import CheckpointPart
from airflow_elastic.adapters.records.checkpoints import checksum_of
from airflow_elastic.adapters.storage.durable_files import make_folder
from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.adapters.storage.keys import key_problem
from airflow_elastic.core.checkpoints.recovery_choice import StateVersion
from airflow_elastic.runtime.tiers.shared_memory import bytes_of
from airflow_elastic.runtime.tiers.storage.checkpoint_files import manifest_of, write_files
from airflow_elastic.runtime.tiers.storage.throttle import SendThrottle
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.manifest import Manifest, StoredFile
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import SpecError, StoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from contextlib import AbstractContextManager

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.runtime.tiers.shared_memory import Note, StagingSlot

log = logging.getLogger(__name__)

#: A run's folder without a change for so long counts as forgotten, and is removed.
FORGOTTEN_SECONDS = 7 * 86400.0

_NAME = re.compile(r"airflow-elastic-[0-9a-f]{16}")
_STATE = re.compile(rf"(\d+)-a(\d+)-g(\d+)({layout.RECOVERED})?")

_CHUNK_BYTES = 4 << 20

#: Called with the step of a copy that is not used, and the reason.
Refused = Callable[[int, str], None]

#: Returns the pages of a worker's ranks.
Pages = Callable[[], "Sequence[Path]"]

#: A disk that takes no data for so long is not used. Flushing the kernel's buffers may take a while.
_QUIET_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class DiskManifest:
    """The record of a worker's part of a state, written after all its files.

    Attributes:
        part: the same record as in storage.
        accounts: files with the samples that its ranks have consumed.
    """

    part: CheckpointPart
    accounts: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True)
class DiskCopy:
    """A part of a state that was found on a disk.

    Attributes:
        folder: the folder of its worker.
        record: its record.
    """

    folder: FolderStore
    record: DiskManifest

    @property
    def manifest(self) -> Manifest:
        """The checkpoint's manifest as far as this part knows it."""
        return self.record.part.manifest

    @property
    def age(self) -> StateVersion:
        """When it was saved."""
        return age_of(self.manifest)

    def damage(self) -> str | None:
        """What is wrong with a file of it; None if every file is byte for byte as it was written."""
        files = (*self.manifest.files, *self.record.accounts)
        return next(filter(None, (_damage(self.folder, file) for file in files)), None)


class WorkerDisk:
    """The copies that workers of a run have on the disk of one machine, seen from one worker.

    Args:
        root: the run's folder on the disk.
        index: number of the worker.
        keep: how many of its states stay.
        pages: returns the pages of its ranks, so that writing does not slow down their training.

    Attributes:
        root: as given.
    """

    def __init__(self, root: Path, index: int, keep: int = 3, pages: Pages = tuple) -> None:
        self.root, self._keep = root, keep
        self._throttling = SendThrottle(pages, "the worker's disk")
        self._mine = FolderStore(root / f"node-{index}", within=root)
        self._lock = threading.Lock()

    @classmethod
    def of_run(cls, folder: str, store: Store, index: int, keep: int = 3, pages: Pages = tuple) -> WorkerDisk:
        """The disk of a run, below the folder that the user names. A new run at the same URI has another one."""
        first = store.get(layout.journal_entry(0)) or b""
        digest = hashlib.sha256(store.uri.encode() + b"\n" + first).hexdigest()[:16]
        return cls(Path(folder, f"airflow-elastic-{digest}"), index, keep, pages)

    def begin(self) -> None:
        """Remove the forgotten folders of other runs. Raises StoreError if the disk cannot be used."""
        self._check()
        for other in self.root.parent.iterdir():
            with contextlib.suppress(OSError):  # another agent may remove it at the same time
                if other != self.root and _is_forgotten(other):
                    shutil.rmtree(other, ignore_errors=True)

    def write(self, held: Sequence[tuple[StagingSlot, Note]], part: int, of: int, attempt: int) -> None:
        """Write the staged state of this worker's ranks, and remove its older states except for the newest few.

        Args:
            held: the ranks' slots, locked for reading, with their notes.
            part: number of this worker among those that train.
            of: how many workers train.
            attempt: number of their attempt.

        Raises:
            StoreError: the disk has failed, or is full.
        """
        note = held[0][1]
        data = layout.checkpoint_data(note.step, attempt, note.generation)
        size, staged_at = bytes_of(held), held[0][0].finished_at / 1e9
        with self._lock, self._throttling.sending(size, staged_at):
            self._check()
            self._prune()
            try:
                files, accounts = write_files(self._mine, held, data, attempt, pace=self._throttling.pace)
                self._write_record(
                    DiskManifest(
                        CheckpointPart(part, of, manifest_of(note, attempt, data, files)), tuple(accounts)
                    )
                )
            except StoreError:
                self._check()  # the folder may have been removed
                raise
            finally:
                self._prune()  # also incomplete states: the disk may be full

    def found(self, refused: Refused) -> Iterator[DiskCopy]:
        """The parts that the records of all workers on this disk name. `DiskCopy.damage` checks their files.

        Args:
            refused: called for each record that is not trusted.

        Raises:
            StoreError: the disk cannot be used.
            OSError: likewise.
        """
        with self._quiet():  # so that no state is half written
            self._check()
        for folder in sorted(self.root.glob("node-*")):
            try:
                paths = sorted(folder.glob(f"{layout.CHECKPOINT_DATA}*/part-*.json"))
            except OSError as error:
                log.warning("%s cannot be read: %s", folder, error)
                continue
            for path in paths:
                if path.parent.name.endswith(layout.RECOVERED):
                    continue  # its name has the attempt that recovered it, not the one that saved it
                try:
                    record = read_record(path.read_bytes())
                except (OSError, ValueError, SpecError, RecursionError) as error:
                    refused(_step(path.parent), f"{path} cannot be read: {error}")
                    continue
                if _names_own_files(path, record):
                    yield DiskCopy(FolderStore(folder), record)
                else:
                    refused(_step(path.parent), f"{path} names files outside of its folder")

    def settle(self, found: DiskCopy, now: Manifest) -> None:
        """Rename a part that is in storage now, under another name: ranks look for its files here by that name."""
        target = Path(self._mine.uri, now.data)
        with contextlib.suppress(OSError, StoreError), self._quiet():
            make_folder(target, within=self.root)
            for file in found.manifest.files:
                path = Path(found.folder.uri, file.key)
                path.rename(target / path.name)
            self._write_record(DiskManifest(replace(found.record.part, manifest=now)))

    def tidy(self, kept: Collection[str]) -> None:
        """Remove every state of this run except those in these data folders. No worker may write meanwhile."""
        names = {data.rstrip("/").rpartition("/")[2] for data in kept}
        with contextlib.suppress(OSError, StoreError), self._quiet():
            self._check()
            for folder in self.root.glob(f"node-*/{layout.CHECKPOINT_DATA}*"):
                if folder.name not in names:
                    _remove(folder)

    def clear(self) -> None:
        """Remove this worker's folder, and the folders above that are empty then."""
        try:
            self._check()
        except StoreError:
            return
        shutil.rmtree(self._mine.uri, ignore_errors=True)
        for folder, _, _ in os.walk(self.root, topdown=False):
            with contextlib.suppress(OSError):  # not empty: another worker may need it
                os.rmdir(folder)

    def awaited(self) -> AbstractContextManager[None]:
        """Write without a speed limit, while a caller waits for it."""
        return self._throttling.lifted()

    def _write_record(self, record: DiskManifest) -> None:
        plain = encode(record)
        self._mine.put(record.part.key, json.dumps({"word": plain, "seal": checksum_of(plain)}).encode())

    def _check(self) -> None:
        """Raises StoreError if the disk cannot be used, or if another user could write to the run's folder.

        A missing folder of the user is not made: a volume that was not mounted would go unnoticed. Files in the run's
        folder are unpickled once they are a checkpoint, so only this user may write there.
        """
        try:
            with contextlib.suppress(FileExistsError):
                self.root.mkdir(0o700)
            about = self.root.lstat()
        except OSError as error:
            if isinstance(error, FileNotFoundError | NotADirectoryError) and not self.root.parent.is_dir():
                raise StoreError(
                    f"there is no folder {self.root.parent} on this machine: mount one, or name another as "
                    "checkpoint.disk"
                ) from None
            raise StoreError(
                f"{self.root.parent} cannot be used: {error}; checkpoint.disk has to be writable"
            ) from error
        # Kubernetes may give a volume to one of the pod's groups, and let that group write.
        mine = about.st_uid == os.geteuid() and about.st_gid in (os.getegid(), *os.getgroups())
        others = 0o002 if mine else 0o022
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & others:
            raise StoreError(
                f"{self.root} is not a folder that only user {os.geteuid()} can write to, and is not trusted: remove "
                "it, or name another folder as checkpoint.disk"
            )

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Keep this worker from writing meanwhile. Raises StoreError if its last write does not end."""
        with self.awaited():
            written = self._throttling.sent
            while not self._lock.acquire(timeout=_QUIET_SECONDS):
                if self._throttling.sent == written:
                    raise StoreError(f"{self._mine.uri} has taken nothing for {_QUIET_SECONDS:.0f} s")
                written = self._throttling.sent
        try:
            yield
        finally:
            self._lock.release()

    def _prune(self) -> None:
        """Remove this worker's incomplete states, and the complete ones except for the newest few."""
        data = Path(self._mine.uri, layout.CHECKPOINT_DATA)
        whole = []
        for folder in data.iterdir() if data.is_dir() else ():
            if any(folder.glob("part-*.json")):
                whole.append(folder)
            else:
                _remove(folder)
        for folder in sorted(whole, key=_age)[: -self._keep]:
            _remove(folder)


def find_on_disk(root: Path, manifest: Manifest) -> dict[str, Path]:
    """The paths of a checkpoint's files that are on this machine's own disk, by key."""
    found: dict[str, Path] = {}
    with contextlib.suppress(OSError):
        for store in root.glob("node-*"):
            for file in manifest.files:
                with contextlib.suppress(OSError):
                    if (path := store / file.key).stat().st_size == file.size:
                        found[file.key] = path
    return found


def _damage(folder: FolderStore, file: StoredFile) -> str | None:
    path, digest, size = Path(folder.uri, file.key), checksums.Crc64(), 0
    try:
        # Read, not mapped: with a mapping, a bad sector would raise SIGBUS instead of an error.
        with path.open("rb", buffering=0) as reader:
            while chunk := reader.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        return f"{path} cannot be read: {error}"
    if size != file.size or digest.hexdigest() != file.checksums.get(checksums.ALGORITHM):
        return f"{path} is not what was written"
    return None


def age_of(manifest: Manifest) -> StateVersion:
    """When it was saved."""
    return StateVersion(manifest.attempt, manifest.generation, manifest.step)


def read_record(data: bytes) -> DiskManifest:
    """Decode a record. Raises ValueError or SpecError if it is damaged."""
    record = json.loads(data)
    if not isinstance(record, dict) or record.get("seal") != checksum_of(record.get("word")):
        raise ValueError("it is not what was written")
    return decode(DiskManifest, record["word"])


def _names_own_files(path: Path, record: DiskManifest) -> bool:
    """Whether a record names only files in its own folder, and the accounts of its own state."""
    manifest = record.part.manifest
    data = f"{layout.CHECKPOINT_DATA}{path.parent.name}/"
    accounts = layout.accounts(manifest.attempt, manifest.generation, manifest.step)
    places = [(file.key, data) for file in manifest.files] + [
        (file.key, accounts) for file in record.accounts
    ]
    return manifest.data == data and all(
        key.startswith(place) and "/" not in key.removeprefix(place) and key_problem(key) is None
        for key, place in places
    )


def _step(folder: Path) -> int:
    age = _age(folder)
    return age[-1] if age else 0


def _age(folder: Path) -> tuple[int, ...]:
    """Attempt, generation and step, from the folder's name. Empty if the name has another form."""
    named = _STATE.fullmatch(folder.name)
    if named is None:
        return ()
    step, attempt, generation = (int(number) for number in named.groups()[:3])
    return attempt, generation, step


def _is_forgotten(folder: Path) -> bool:
    if _NAME.fullmatch(folder.name) is None or folder.is_symlink():
        return False
    stores = [*folder.glob(f"node-*/{layout.CHECKPOINT_DATA}")]
    newest = max((path.stat().st_mtime for path in (folder, *stores)), default=0.0)
    return newest < time.time() - FORGOTTEN_SECONDS


def _remove(folder: Path) -> None:
    """Remove a state's files and its accounts of samples. The record goes first: without it, the rest is ignored."""
    for record in folder.glob("part-*.json"):
        with contextlib.suppress(OSError):
            record.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    if age := _age(folder):
        below = layout.accounts(*age)
        with contextlib.suppress(OSError):
            for account in folder.parents[2].glob(f"{below}*"):
                account.unlink(missing_ok=True)
