"""The control mailbox: requests to the run's controller, from anybody who can write under the run URI.

A request is one object, created exclusively, so none is lost or overwritten. The controller journals the events of a
request before it deletes it. A request that is read twice has the same id, and the machine ignores the second one.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.status import WorkerStatus

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store


@dataclass(frozen=True, slots=True)
class CheckpointTrouble:
    """A worker's problem with a checkpoint.

    Attributes:
        attempt: number of its attempt.
        step: of the checkpoint. It could not be written, or it or a copy is damaged, or nothing older was removed after
            its commit.
        reason: in a sentence.
        newest: for a damaged one, the step that was restored instead.
    """

    attempt: int
    step: int
    reason: str
    newest: int | None = None


@dataclass(frozen=True, slots=True)
class RankTrouble:
    """An agent's report of its ranks' failure.

    Attributes:
        attempt: number of their attempt.
        worker: their worker, with their errors.
        step: the newest that all of them had done.
    """

    attempt: int
    worker: WorkerStatus
    step: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request, or one report of a worker.

    Attributes:
        id: sorts by time of posting.
        kind: `scale`, `stop`, `save`, `resume`, `exclude` or `include`; from workers `unsaved`, `damaged`, `unpruned`,
            `refused` (a copy of a checkpoint) or `failed`.
        by: who asks, in words that the record of the run shows.
        workers: for `scale`, the wanted number of workers.
        owner: for `stop`, it counts only while this is the run's owner.
        checkpoint: for `unsaved`, `damaged`, `unpruned` and `refused`.
        ranks: for `failed`.
        step: for `resume`, that of the checkpoint to go on from.
        machine: for `exclude` and `include`.
    """

    id: str
    kind: str
    by: str
    workers: int | None = None
    owner: str | None = None
    checkpoint: CheckpointTrouble | None = None
    ranks: RankTrouble | None = None
    step: int | None = None
    machine: str | None = None


class Mailbox:
    """Requests under a run URI."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def post(
        self,
        kind: str,
        *,
        by: str,
        workers: int | None = None,
        owner: str | None = None,
        checkpoint: CheckpointTrouble | None = None,
        ranks: RankTrouble | None = None,
        step: int | None = None,
        machine: str | None = None,
    ) -> Request:
        """Post a request. It is durable when this returns; a controller carries it out when it reads it."""
        ident = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
        request = Request(ident, kind, by, workers, owner, checkpoint, ranks, step, machine)
        self._store.create(layout.request(ident), json.dumps(encode(request)).encode())
        return request

    def read(self) -> list[Request]:
        """All requests that wait, oldest first. Other objects are left alone."""
        requests = []
        for entry in self._store.list(layout.CONTROL):
            data = self._store.get(entry.key)
            if data is not None:
                try:
                    requests.append(decode(Request, json.loads(data)))
                except (ValueError, SpecError):
                    continue
        return requests

    def done(self, request: Request) -> None:
        """Remove a request that the journal holds."""
        self._store.delete([layout.request(request.id)])
