"""What the errors of a file system mean to the person who chose the folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from airflow_elastic.spec.errors import StoreError, StoreFull, StoreUnfit

_GRANT = "give user id {uid} read and write access there"
_ELSEWHERE = "or choose another run URI"

# errno -> (the error to raise, the problem, the advice)
_MEANING: dict[int, tuple[type[StoreError], str, str]] = {
    errno.ENOSPC: (StoreFull, "the disk is full", f"free some space, {_ELSEWHERE}"),
    errno.EDQUOT: (StoreFull, "the disk quota is used up", f"free some space, {_ELSEWHERE}"),
    errno.EACCES: (StoreUnfit, "permission denied", _GRANT),
    errno.EPERM: (StoreUnfit, "permission denied", _GRANT),
    errno.EROFS: (StoreUnfit, "the file system is read-only", f"mount it writable, {_ELSEWHERE}"),
    errno.ENOENT: (StoreUnfit, "no folder can be made there", "choose another run URI"),
    errno.ENOTDIR: (StoreUnfit, "a file is where a folder has to be", f"move the file away, {_ELSEWHERE}"),
    errno.EISDIR: (StoreUnfit, "a folder is where the object has to be", f"move it away, {_ELSEWHERE}"),
    errno.ENAMETOOLONG: (StoreUnfit, "the path is too long", "choose a shorter run URI"),
    errno.ELOOP: (StoreUnfit, "symbolic links lead in a circle", f"fix them, {_ELSEWHERE}"),
}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


def store_error(exc: OSError, uri: str, doing: str, key: str, local: Path | None = None) -> StoreError:
    """The error with a sentence for an OSError while `doing` something to `key`; "" is the store as a whole.

    With `local` the problem is that file, which an object is copied to or from, and not the store.
    """
    unknown = (StoreError, (exc.strerror or str(exc)).lower(), "check the disk or the mount, then try again")
    kind, matter, advice = _MEANING.get(exc.errno or 0, unknown)
    what = repr(key) if key else "what is there"
    if local is not None:
        what, kind, advice = f"{what} ({local})", StoreError, "check that local path, then try again"
    place = blocking_file(str(exc.filename)) if exc.filename and exc.errno == errno.ENOTDIR else exc.filename
    at = f" at {place}" if place and str(place) != uri else ""
    return kind(f"{uri}: cannot {doing} {what}: {matter}{at}; {advice.format(uid=os.geteuid())}")


def blocking_file(path: str) -> str:
    """The file where a folder on the way to this path has to be; the path itself if there is none any more."""
    on_the_way = [*reversed(Path(path).parents), Path(path)]
    return next((str(one) for one in on_the_way if os.path.isfile(one)), path)


def no_links(exc: OSError, uri: str) -> StoreUnfit | None:
    """The error for an OSError of `os.link` that means: no hard links here. None for any other."""
    if exc.errno not in _NO_LINKS:
        return None
    return StoreUnfit(
        f"{uri} is on a file system without hard links ({(exc.strerror or str(exc)).lower()}): "
        "exclusive creation needs them. Use a local disk, NFS, CephFS or Lustre, or an s3:// URI"
    )
