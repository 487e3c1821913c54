"""A store in a folder, on this machine or on a file system that several machines share."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from airflow_elastic.adapters.storage.durable_files import (
    fsync_folder,
    is_abandoned,
    make_folder,
    sync,
    temp_file,
    write,
)
from airflow_elastic.adapters.storage.folder_errors import no_links, store_error
from airflow_elastic.adapters.storage.keys import RESERVED, check_key, check_prefix, check_range, key_problem
from airflow_elastic.adapters.storage.open_range import open_file
from airflow_elastic.adapters.storage.store import Entry, at_once, ignore_progress
from airflow_elastic.spec.errors import StoreError

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Iterator

    from airflow_elastic.adapters.storage.store import Pace, Reader

_ROUNDS = 100  # against a delete that keeps removing the folder; a lost round takes microseconds
_COPY_BYTES = 1 << 20


class FolderStore:
    """Objects as ordinary files below `root` (made absolute; `~` is expanded), made at the first write.

    Every object appears under its name only when its bytes are on the disk. So a reader never sees half an object, even
    after a crash or a loss of power. `create` needs hard links: on local disks and NFS alike, no other operation is
    both exclusive and atomic. Safe to use from several threads, processes and hosts, and after a fork. The folder
    `within` is never made: if it is missing, so is a disk.
    """

    def __init__(self, root: str | os.PathLike[str], within: Path | None = None) -> None:
        self._root, self._within = Path(os.path.abspath(os.path.expanduser(root))), within
        self._settled: set[Path] = set()  # folders whose own names are known to be durable, up to the root

    def __repr__(self) -> str:
        return f"FolderStore({self.uri!r})"

    @property
    def uri(self) -> str:
        return str(self._root)

    def get(self, key: str) -> bytes | None:
        path = self._path(key)
        with self._told("read", key):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._require_folder()
                return None

    def read_from(self, key: str, start: int, limit: int = 1 << 20) -> bytes:
        check_range(start, limit)
        path = self._path(key)
        with self._told("read", key):
            try:
                with open(path, "rb") as file:
                    file.seek(start)
                    return file.read(limit)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._require_folder()
                return b""

    @contextlib.contextmanager
    def stream(self, key: str, start: int, size: int) -> Iterator[Reader]:
        check_range(start, size)
        path = self._path(key)
        with self._told("read", key), contextlib.ExitStack() as stack:
            try:
                reader = stack.enter_context(open_file(path, start, size))
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._require_folder()
                yield io.BytesIO()
            else:
                yield reader

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        path = self._path(key)
        with self._told("write", key):
            self._place(path, lambda file: file.write(data), os.replace, durable=durable)

    def write(self, key: str, data: memoryview, *, pace: Pace = at_once) -> None:
        path = self._path(key)
        with self._told("write", key):
            self._place(path, lambda file: write(file, data, pace), os.replace)

    def create(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        with self._told("create", key):
            for _ in range(_ROUNDS):
                try:
                    stored = path.read_bytes()
                except FileNotFoundError:
                    try:
                        self._place(path, lambda file: file.write(data), self._link)
                    except FileExistsError:
                        continue  # lost a race, or NFS repeated a link whose answer was lost: compare the content
                    return True
                with contextlib.suppress(FileNotFoundError):
                    fsync_folder(path.parent)  # its maker may have been killed before this
                return stored == data
        raise StoreError(
            f"{self.uri}: {key!r} was made and removed {_ROUNDS} times while we tried to create it; "
            "find out who else writes there, then try again"
        )

    def list(self, prefix: str = "") -> builtins.list[Entry]:
        check_prefix(prefix)
        found: dict[str, Entry] = {}  # a folder that changes while it is read may name a file twice
        pending = [prefix.rpartition("/")[0]]
        with self._told("list", prefix):
            while pending:
                folder = pending.pop()
                for item in self._items(folder):
                    key = f"{folder}/{item.name}" if folder else item.name
                    if not key.startswith(prefix) or key_problem(key):
                        continue
                    if item.is_dir(follow_symlinks=False):
                        pending.append(key)
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        about = item.stat()
                        if stat.S_ISREG(about.st_mode):
                            found[key] = Entry(key, about.st_size)
        return [found[key] for key in sorted(found)]

    def folders(self, prefix: str = "") -> builtins.list[str]:
        """The names of the folders directly in `prefix`, sorted; without links. `prefix` is "" or ends with `/`."""
        with self._told("list", prefix):
            items = [*self._items(prefix.rstrip("/"))]
            return sorted(item.name for item in items if item.is_dir(follow_symlinks=False))

    def names(self) -> Iterator[str]:
        """All names here except folders, one after the other, also names that are no objects: temp files, odd names.

        A folder that cannot be read (`lost+found`) is passed over, unless it is the root itself.
        """
        with self._told("list", ""):
            self._require_folder()
            for folder, below, files in os.walk(self._root):
                below.sort()
                links = (name for name in below if os.path.islink(os.path.join(folder, name)))
                for name in sorted([*files, *links]):
                    yield os.path.relpath(os.path.join(folder, name), self._root)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            with self._told("delete", key):
                try:
                    path.unlink()
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    self._require_folder()
                self._prune(path.parent)

    def upload(self, key: str, path: Path) -> None:
        target = self._path(key)
        with contextlib.ExitStack() as stack:
            with self._told("upload", key, path):
                source = stack.enter_context(open(path, "rb"))

            def copy(file: BinaryIO) -> None:
                source.seek(0)
                shutil.copyfileobj(source, file, _COPY_BYTES)

            with self._told("upload", key):
                self._place(target, copy, os.replace)

    def download(
        self, key: str, path: Path, *, durable: bool = True, told: Callable[[int], None] = ignore_progress
    ) -> None:
        with contextlib.ExitStack() as stack:
            with self._told("download", key):
                try:
                    source = stack.enter_context(open(self._path(key), "rb"))
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    self._require_folder()
                    raise StoreError(f"{self.uri}: there is no object {key!r} to download") from None
            with self._told("download", key, path):
                make_folder(path.absolute().parent)
                with temp_file(path.absolute().parent) as (temp, file):
                    while data := source.read(_COPY_BYTES):
                        file.write(data)
                        told(file.tell())
                    if durable:
                        sync(file)
                    else:
                        file.close()
                    os.replace(temp, path)
                    fsync_folder(path.absolute().parent)

    def abandon(self, prefix: str, dead: Callable[[str], bool]) -> int:
        removed = 0
        with self._told("tidy", prefix):
            for folder, _, names in os.walk(self._root / check_prefix(prefix).rpartition("/")[0]):
                for temp in (Path(folder, name) for name in names if name.startswith(RESERVED)):
                    key = temp.relative_to(self._root).as_posix()
                    if key.startswith(prefix) and dead(key) and is_abandoned(temp, math.inf):
                        temp.unlink(missing_ok=True)
                        self._prune(temp.parent)
                        removed += 1
        return removed

    def local_path(self, key: str) -> Path | None:
        return self._path(key)

    def sweep(self, older_than_s: float = 3600.0) -> int:
        """Remove the half-written files of dead writers, untouched for `older_than_s` seconds; returns how many.

        The age is on the file system's own clock, because the clock of a shared one may differ. A file that its writer
        still holds open stays at any age. Raises StoreError like every other method.
        """
        removed = 0
        with self._told("tidy", ""):
            if not self._root.is_dir():
                return 0
            with temp_file(self._root) as (_, file):
                now = os.stat(file.fileno()).st_mtime
            for folder, _, names in os.walk(self._root):
                for temp in (Path(folder, name) for name in names if name.startswith(RESERVED)):
                    if is_abandoned(temp, now - older_than_s):
                        temp.unlink(missing_ok=True)
                        self._prune(temp.parent)
                        removed += 1
        return removed

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _place(
        self,
        path: Path,
        fill: Callable[[BinaryIO], object],
        settle: Callable[[Path, Path], None],
        *,
        durable: bool = True,
    ) -> None:
        """Write a temp file beside `path` and `settle` it there, while deletes may remove the empty folder.

        A temp file protects the folder from removal. ENOENT before it exists means another round.
        """
        for left in reversed(range(_ROUNDS)):
            try:
                self._make_folder(path.parent)
                with temp_file(path.parent) as (temp, file):
                    fill(file)
                    if durable:
                        sync(file)
                    else:
                        file.close()  # before it has its name: clients of an NFS share see only closed content
                    settle(temp, path)
                    if durable:
                        fsync_folder(path.parent)
                return
            except OSError as exc:
                if exc.errno not in (errno.ENOENT, errno.ESTALE) or not left:
                    raise

    def _link(self, temp: Path, path: Path) -> None:
        try:
            os.link(temp, path)
        except OSError as exc:
            if unfit := no_links(exc, self.uri):
                raise unfit from exc
            raise

    def _make_folder(self, folder: Path) -> None:
        make_folder(folder, self._within)
        if folder not in self._settled:  # its maker may have died before the name was durable
            for each in (folder, *folder.parents):
                fsync_folder(each.parent)
                if each == self._root:
                    break
            self._settled.add(folder)

    def _prune(self, folder: Path) -> None:
        """Remove `folder` and its parents below the root as far as they are empty."""
        while folder != self._root:
            self._settled.discard(folder)
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                return
            folder = folder.parent

    def _items(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self._root / folder) as items:
                yield from items
        except (FileNotFoundError, NotADirectoryError):
            self._require_folder()

    def _require_folder(self) -> None:
        """Raise NotADirectoryError if the root cannot become a folder; a missing root is no error."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.stat(self._root).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.uri)

    @contextlib.contextmanager
    def _told(self, doing: str, key: str, local: Path | None = None) -> Iterator[None]:
        """Turn an OSError into a sentence: about this store, or about the `local` file of a copy."""
        try:
            yield
        except OSError as exc:
            raise store_error(exc, self.uri, doing, key, local) from exc
