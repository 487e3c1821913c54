"""The control mailbox: how anybody who can write under a run URI tells the run's controller something.

A request is one object, created exclusively, so none is lost or overwritten. The controller journals what it makes of a
request before it deletes it; a request read twice has the same id, and the machine ignores the second.
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
    """What a worker has met.

    Attributes:
        attempt: number of its attempt.
        step: the checkpoint that could not be written, that is damaged or has a damaged copy, or after which nothing
            older was removed.
        reason: in a sentence.
        newest: where one is damaged, the step that was restored instead.
    """

    attempt: int
    step: int
    reason: str
    newest: int | None = None


@dataclass(frozen=True, slots=True)
class RankTrouble:
    """What an agent tells of its ranks' failure.

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
    """One wish, or one piece of news.

    Attributes:
        id: sorts by time of posting.
        kind: `scale`, `stop` or `save`; from workers `unsaved`, `damaged`, `unpruned`, `refused` (a copy of a
            checkpoint) or `failed`.
        by: who asks, in words that the record of the run will show.
        workers: for `scale`, the number of workers wanted.
        owner: for `stop`, void unless this still is the run's owner.
        checkpoint: for `unsaved`, `damaged`, `unpruned` and `refused`.
        ranks: for `failed`.
    """

    id: str
    kind: str
    by: str
    workers: int | None = None
    owner: str | None = None
    checkpoint: CheckpointTrouble | None = None
    ranks: RankTrouble | None = None


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
    ) -> Request:
        """Leave a request. Durable when this returns; carried out when a controller reads it."""
        ident = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
        request = Request(ident, kind, by, workers, owner, checkpoint, ranks)
        self._store.create(layout.request(ident), json.dumps(encode(request)).encode())
        return request

    def read(self) -> list[Request]:
        """All requests that wait, oldest first. What is no request of ours is left alone."""
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
