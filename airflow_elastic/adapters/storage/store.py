"""The small interface to storage: what a run needs from a folder or an S3 prefix.

Everything about a run is stored under one *run URI*. The journal, the mailbox, checkpoints and logs all use this
protocol, so a folder, a real S3 service and a test double are interchangeable. `testing.store_conformance` is the test
suite that every implementation passes.

Calls block: the controller runs them in threads, the training side calls them directly.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

    #: Entered for each part of a write, with its number of bytes; may wait. Called by several threads.
    Pace = Callable[[int], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored object: its key below the store's URI, with `/` between parts, and its size in bytes."""

    key: str
    size: int


def at_once(size: int) -> AbstractContextManager[None]:
    """The pace without any limit, for a caller that waits."""
    return nullcontext()


def ignore_progress(done: int) -> None:
    """Ignores the progress of a download."""


class Reader(Protocol):
    """The bytes of an object, one after the other."""

    def readinto(self, room: memoryview, /) -> int:
        """Fill `room` with the next bytes, as far as they have come; returns how many, 0 at the end."""
        ...


class Store(Protocol):
    """Objects by key below one URI. Keys are relative, use `/`, and never contain `..` or an empty part.

    If the storage itself fails after the implementation's own retries, every method raises `StoreError` with the URI,
    the key and what to do. A missing object is not a failure.
    """

    @property
    def uri(self) -> str:
        """The URI that `open_store` got, normalised: an absolute `file://`-less path, or `s3://bucket/prefix`."""
        ...

    def get(self, key: str) -> bytes | None:
        """The whole object, or None where there is none."""
        ...

    def read_from(self, key: str, start: int, limit: int = 1 << 20) -> bytes:
        """At most `limit` bytes from offset `start`; empty where the object is missing or not that long."""
        ...

    def stream(self, key: str, start: int, size: int) -> AbstractContextManager[Reader]:
        """At most `size` bytes from offset `start`, to read into memory of the caller; may be large.

        No bytes if the object is missing or shorter. The reading also raises `StoreError`.
        """
        ...

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Create or replace an object at once: a reader sees the old bytes or the new ones, never a mixture.

        Durable before it returns, unless `durable` is False. That is for documents that are written every second: a
        flush of the disk each time would slow trainings down that write to it.
        """
        ...

    def write(self, key: str, data: memoryview, *, pace: Pace = at_once) -> None:
        """Create or replace an object, durably, from memory that may be large: in parts, at a pace."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Create an object if, and only if, there is none: True to exactly one of any number of callers.

        Durable before it returns. Also True if the stored bytes are the same, because a client may have repeated a put
        whose answer was lost. So competing callers must write distinct bytes.
        """
        ...

    def list(self, prefix: str = "") -> list[Entry]:
        """All objects whose key starts with `prefix` (a string prefix, at any depth), sorted by key."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; missing ones are no error. Empty folders do not remain visible."""
        ...

    def upload(self, key: str, path: Path) -> None:
        """Copy a local file into an object, durably and with a checksum on the way where the service has one."""
        ...

    def download(
        self, key: str, path: Path, *, durable: bool = True, told: Callable[[int], None] = ignore_progress
    ) -> None:
        """Copy an object into a local file (parent folders are made); the file appears complete or not at all.

        Unless `durable` is False, it outlives a loss of power. `told` is called repeatedly with the number of bytes so
        far; by several threads, but one at a time.
        """
        ...

    def abandon(self, prefix: str, dead: Callable[[str], bool]) -> int:
        """Remove half-written objects of dead writers below `prefix`; returns how many.

        `dead` returns, for an object's key, whether its writer is dead.
        """
        ...

    def local_path(self, key: str) -> Path | None:
        """The path of the object if it is an ordinary file of this machine (even before it exists); else None."""
        ...
