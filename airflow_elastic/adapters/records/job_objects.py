"""The documents of a job whose workers share no folder: kept under the run URI, and cached for a moment.

The same documents as in `job_files`, at `jobs/<name>/` below the run URI. Documents that only one worker reads (pages,
its log) stay in its own folder.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from airflow_elastic.adapters.records.job_files import JobFiles, Members, Result
from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import SpecError, StoreError

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How often a document is really looked up that is asked for many times a second: in a folder, and in an object store.
_NEAR_SECONDS, _FAR_SECONDS = 0.25, 4.0

#: Beside the members, so that one listing shows both.
_CLOSED = "members/closed"


class JobObjects(JobFiles):
    """The documents of one job, in the run's store.

    Args:
        store: where the run is stored.
        name: of the job.
        folder: for this worker's own files.
    """

    poll_seconds = 0.1

    def __init__(self, store: Store, name: str, folder: Path) -> None:
        super().__init__(folder)
        self._store, self._prefix = store, layout.job(name)
        self._name = name
        near = store.local_path(layout.STATUS) is not None
        self._memory = _NEAR_SECONDS if near else _FAR_SECONDS
        self.standby_seconds = 0.1 if near else 0.5
        self._looked_at = -self._memory
        self._newest: Members | None = None
        self._is_closed = False
        self._results: dict[int, tuple[float, Result | None]] = {}

    @property
    def scripts(self) -> Path:
        """The folder for a script that is part of the run's specification; the same path on each worker."""
        return Path(tempfile.gettempdir(), f"airflow-elastic-{self._name}")

    def create(self, name: str, document: object) -> bool:
        """Write a document unless there is one. Also True if the existing one is the same."""
        return self._store.create(self._key(name), _json(document))

    def write(self, name: str, document: object) -> None:
        """Write or replace a document at once."""
        self._store.put(self._key(name), _json(document))

    def read(self, name: str, kind: type[T]) -> T | None:
        """A document; None where there is none that can be read."""
        data = self._store.get(self._key(name))
        try:
            return None if data is None else decode(kind, json.loads(data))
        except (ValueError, SpecError):
            return None

    @property
    def closed(self) -> bool:
        """Whether nothing may start any more, as of a moment ago."""
        self._look()
        return self._is_closed

    def newest_members(self) -> Members | None:
        """The workers of the newest generation, as of a moment ago."""
        self._look()
        return self._newest

    def superseded(self, generation: int) -> bool:
        """Whether there is a newer generation, as of a moment ago."""
        newest = self.newest_members()
        return newest is not None and newest.generation > generation

    def result(self, index: int) -> Result | None:
        """How a worker ended, as of a moment ago: waiting workers ask for the result of each other at every look."""
        now = time.monotonic()
        looked_at, _ = self._results.get(index, (-self._memory, None))
        if now - looked_at >= self._memory:
            self._results[index] = (now, super().result(index))
        return self._results[index][1]

    def stand_by(self, index: int, generation: int) -> None:
        """Does nothing: workers without a shared folder report this to the run's mailbox."""

    def look_anew(self) -> None:
        """Forget cached documents."""
        self._looked_at = -self._memory
        self._results.clear()

    def joined(self, index: int) -> int | None:
        """The generation since which a worker has been a member without a break; None if it is none."""
        return _joined(index, self.generations())

    def begun(self) -> dict[int, str]:
        """The uids of the pods of workers that have begun since they joined: a worker may begin only once."""
        generations, found = self.generations(), {}
        names = {entry.key.removeprefix(self._prefix) for entry in self._store.list(f"{self._prefix}node-")}
        for index in generations[-1].all if generations else ():
            name = f"node-{index}/agent-{_joined(index, generations) or 0:04d}.json"
            if name in names:
                found[index] = str((self.read(name, dict) or {}).get("uid", ""))
        return found

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < self._memory:
            return
        folder = f"{self._prefix}members/"
        try:
            names = {entry.key.removeprefix(self._prefix) for entry in self._store.list(folder)}
            newest = max(names - {_CLOSED}, default=None)
            if newest is not None and (self._newest is None or newest > _members(self._newest.generation)):
                self._newest = self.read(newest, Members)
            self._is_closed = _CLOSED in names
        except StoreError as error:
            if self._newest is None:
                raise
            log.warning("the job's documents are out of reach, the last known ones still count: %s", error)
        self._looked_at = now

    def _key(self, name: str) -> str:
        return self._prefix + (_CLOSED if name == "closed" else name)


def _joined(index: int, generations: list[Members]) -> int | None:
    since = None
    for members in reversed(generations):
        if index not in members.all:
            break
        since = members.generation
    return since


def _members(generation: int) -> str:
    return f"members/{generation:04d}.json"


def _json(document: object) -> bytes:
    return json.dumps(encode(document)).encode()
