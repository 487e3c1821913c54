"""A worker's states on the disk of its own machine, where they outlive its agent, its pod, and a reboot.

Below the folder that the user has named: `airflow-elastic-<16 hex digits, the run's own>/node-3/`, and there the files
and the word of its part as in the run's storage, under the same keys. No state there is a checkpoint: that it becomes
in storage, once all parts of it have been found (`recovery`). What has no word is not whole.
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

#: What a run has left behind for so long is taken for forgotten.
FORGOTTEN_SECONDS = 7 * 86400.0

_NAME = re.compile(r"airflow-elastic-[0-9a-f]{16}")
_STATE = re.compile(rf"(\d+)-a(\d+)-g(\d+)({layout.RECOVERED})?")

_CHUNK_BYTES = 4 << 20

#: Is told the step of a copy that is not used, and why.
Refused = Callable[[int, str], None]

#: Gives the pages of a worker's ranks.
Pages = Callable[[], "Sequence[Path]"]

#: A disk that takes nothing for so long is done without. What the kernel has still to write may take a while.
_QUIET_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class DiskManifest:
    """What a worker has written of a state, told when all of it is there.

    Attributes:
        part: the same word as in storage.
        accounts: what its ranks told of their samples.
    """

    part: CheckpointPart
    accounts: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True)
class DiskCopy:
    """A part of a state that was found on a disk.

    Attributes:
        folder: where its files lie.
        word: that it is there.
    """

    folder: FolderStore
    word: DiskManifest

    @property
    def manifest(self) -> Manifest:
        """What is known of the state by this part."""
        return self.word.part.manifest

    @property
    def age(self) -> StateVersion:
        """When it was saved."""
        return age_of(self.manifest)

    def damage(self) -> str | None:
        """In what it is not byte for byte what was written; None where it is."""
        files = (*self.manifest.files, *self.word.accounts)
        return next(filter(None, (_damage(self.folder, file) for file in files)), None)


class WorkerDisk:
    """What workers of a run have on the disk of one machine, seen from one of them.

    Args:
        root: the run's folder on it.
        index: number of the worker.
        keep: states of it that stay.
        pages: gives those of its ranks, who are to keep their speed.

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
        """That of a run, below the folder that the user has named. A run that is begun anew has another one."""
        first = store.get(layout.journal_entry(0)) or b""
        digest = hashlib.sha256(store.uri.encode() + b"\n" + first).hexdigest()[:16]
        return cls(Path(folder, f"airflow-elastic-{digest}"), index, keep, pages)

    def begin(self) -> None:
        """Remove what other runs have forgotten. Raises StoreError where the disk cannot be used."""
        self._check()
        for other in self.root.parent.iterdir():
            with contextlib.suppress(OSError):  # another agent is quicker
                if other != self.root and _is_forgotten(other):
                    shutil.rmtree(other, ignore_errors=True)

    def write(self, held: Sequence[tuple[StagingSlot, Note]], part: int, of: int, attempt: int) -> None:
        """Write what the ranks of this worker have staged, and remove all but the newest states.

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
        size, staged_at = bytes_of(held), held[0][0].finished_at / 1e9
        with self._lock, self._throttling.sending(size, staged_at):
            self._check()
            self._prune()
            try:
                files, accounts = write_files(self._mine, held, data, attempt, pace=self._throttling.pace)
                self._tell(
                    DiskManifest(
                        CheckpointPart(part, of, manifest_of(note, attempt, data, files)), tuple(accounts)
                    )
                )
            except StoreError:
                self._check()  # the folder may have gone meanwhile
                raise
            finally:
                self._prune()  # also what has no word: it may be the disk that is full

    def found(self, refused: Refused) -> Iterator[DiskCopy]:
        """What words of whichever worker tell of; not that it is so (`DiskCopy.damage`).

        Args:
            refused: is told of words that are not believed.

        Raises:
            StoreError: the disk cannot be used.
            OSError: likewise.
        """
        with self._quiet():  # what is just being written is there, or is not
            self._check()
        for folder in sorted(self.root.glob("node-*")):
            try:
                paths = sorted(folder.glob(f"{layout.CHECKPOINT_DATA}*/part-*.json"))
            except OSError as error:
                log.warning("%s cannot be read: %s", folder, error)
                continue
            for path in paths:
                if path.parent.name.endswith(layout.RECOVERED):
                    continue  # in the name of an attempt that did not save it
                try:
                    word = _heard(path.read_bytes())
                except (OSError, ValueError, SpecError, RecursionError) as error:
                    refused(_step(path.parent), f"{path} cannot be read: {error}")
                    continue
                if _is_plain(path, word):
                    yield DiskCopy(FolderStore(folder), word)
                else:
                    refused(_step(path.parent), f"{path} tells of what lies elsewhere")

    def settle(self, found: DiskCopy, now: Manifest) -> None:
        """What was found is in storage now, in another folder: files here are to be found by its name, too."""
        target = Path(self._mine.uri, now.data)
        with contextlib.suppress(OSError, StoreError), self._quiet():
            make_folder(target, within=self.root)
            for file in found.manifest.files:
                path = Path(found.folder.uri, file.key)
                path.rename(target / path.name)
            self._tell(DiskManifest(replace(found.word.part, manifest=now)))

    def tidy(self, kept: Collection[str]) -> None:
        """Remove everything of this run, but for these folders of data. While no worker writes."""
        names = {data.rstrip("/").rpartition("/")[2] for data in kept}
        with contextlib.suppress(OSError, StoreError), self._quiet():
            self._check()
            for folder in self.root.glob(f"node-*/{layout.CHECKPOINT_DATA}*"):
                if folder.name not in names:
                    _remove(folder)

    def clear(self) -> None:
        """Remove what this worker has written, and folders that are empty then."""
        try:
            self._check()
        except StoreError:
            return
        shutil.rmtree(self._mine.uri, ignore_errors=True)
        for folder, _, _ in os.walk(self.root, topdown=False):
            with contextlib.suppress(OSError):  # another worker's, who may need it
                os.rmdir(folder)

    def awaited(self) -> AbstractContextManager[None]:
        """While somebody waits for what is written: it is not held back for training."""
        return self._throttling.lifted()

    def _tell(self, word: DiskManifest) -> None:
        plain = encode(word)
        self._mine.put(word.part.key, json.dumps({"word": plain, "seal": checksum_of(plain)}).encode())

    def _check(self) -> None:
        """A folder that is not there is not made: what is meant to be mounted there would be elsewhere.

        What lies in the run's own is unpickled once it has become a checkpoint: it must be nobody else's.
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
        # Kubernetes gives volumes to a pod's own group.
        mine = about.st_uid == os.geteuid() and about.st_gid in (os.getegid(), *os.getgroups())
        others = 0o002 if mine else 0o022
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & others:
            raise StoreError(
                f"{self.root} is not a folder that only user {os.geteuid()} can write to, and is not trusted: remove "
                "it, or name another folder as checkpoint.disk"
            )

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """While this worker writes nothing. Raises StoreError where its disk does not come to an end."""
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
        """Remove all but the newest states of this worker, and what is not whole."""
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
    """Where files of a checkpoint lie on this machine's own disk, by their keys; those that do."""
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
        # Not mapped: a bad sector would be a signal then, and no error.
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


def _heard(data: bytes) -> DiskManifest:
    """Raises ValueError, or SpecError, where it is not what was told."""
    told = json.loads(data)
    if not isinstance(told, dict) or told.get("seal") != checksum_of(told.get("word")):
        raise ValueError("it is not what was written")
    return decode(DiskManifest, told["word"])


def _is_plain(path: Path, word: DiskManifest) -> bool:
    """Whether it tells of files that lie beside it, and of its own state's accounts, and of nothing else."""
    manifest = word.part.manifest
    data = f"{layout.CHECKPOINT_DATA}{path.parent.name}/"
    accounts = layout.accounts(manifest.attempt, manifest.generation, manifest.step)
    places = [(file.key, data) for file in manifest.files] + [(file.key, accounts) for file in word.accounts]
    return manifest.data == data and all(
        key.startswith(place) and "/" not in key.removeprefix(place) and key_problem(key) is None
        for key, place in places
    )


def _step(folder: Path) -> int:
    age = _age(folder)
    return age[-1] if age else 0


def _age(folder: Path) -> tuple[int, ...]:
    """Attempt, generation and step, from its name."""
    named = _STATE.fullmatch(folder.name)
    if named is None:
        return ()
    step, attempt, generation = (int(word) for word in named.groups()[:3])
    return attempt, generation, step


def _is_forgotten(folder: Path) -> bool:
    if _NAME.fullmatch(folder.name) is None or folder.is_symlink():
        return False
    stores = [*folder.glob(f"node-*/{layout.CHECKPOINT_DATA}")]
    newest = max((path.stat().st_mtime for path in (folder, *stores)), default=0.0)
    return newest < time.time() - FORGOTTEN_SECONDS


def _remove(folder: Path) -> None:
    """One state's files, and what was told of its samples; first the word that it is there."""
    for word in folder.glob("part-*.json"):
        with contextlib.suppress(OSError):
            word.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    if age := _age(folder):
        below = layout.accounts(*age)
        with contextlib.suppress(OSError):
            for account in folder.parents[2].glob(f"{below}*"):
                account.unlink(missing_ok=True)
