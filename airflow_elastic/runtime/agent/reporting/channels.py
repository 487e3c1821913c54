"""How the progress of all workers reaches the lead, which reports it: through a shared folder, or through a store."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import TCPStore

from airflow_elastic.adapters.records.job_files import attempt_of
from airflow_elastic.adapters.records.rank_progress import (
    USAGE,
    GenerationProgress,
    RankProgress,
    gather,
    gather_files,
    read_reports,
    with_usage,
)
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.status import WorkerUsage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_elastic.adapters.records.job_files import Members
    from airflow_elastic.runtime.agent.worker import Worker
    from airflow_elastic.spec.status import Progress

#: How long the lead waits at the end for the last reports of the others.
_LAST_WORDS_SECONDS = 3.0


class FolderChannel:
    """For workers on one machine: the lead reads the pages of all ranks, and what each worker says of its usage."""

    def __init__(self, node: Worker) -> None:
        self._node = node
        self._written: WorkerUsage | None = None

    def __call__(self, last: bool) -> Progress | None:
        """The progress, if this worker reports it: the lead does, and a worker whose ranks have failed.

        The lead of that worker may be gone.
        """
        node = self._node
        # The run may have been removed, and its folder must not appear again.
        there = node.files.node(node.index).is_dir()
        if there and node.usage is not None and node.usage != self._written:
            self._written = node.usage
            node.files.write(f"node-{node.index}/{USAGE}", node.usage)
        return gather_files(node.files, node.record) if node.is_lead or node.standing_by else None


class LeadChannel:
    """For workers on several machines: each sends its progress to the lead, through the store of their rendezvous."""

    def __init__(self, node: Worker) -> None:
        self._node = node
        self._generation = 0
        self._client: TCPStore | None = None
        self._server: TCPStore | None = None  # keeps the lead's store alive until the last reports have come
        self._reported: dict[int, GenerationProgress] = {}
        self._attempt = node.attempt

    def __call__(self, last: bool) -> Progress | None:
        """Send this worker's progress to the lead. On the lead: the progress of all; None if it is not known now."""
        node = self._node
        members, store = node.members, node.meeting_store
        if members is None or (store is None and self._generation != members.generation):
            return None
        if self._generation != members.generation:
            self._client = None
            self._generation, self._server = members.generation, store
        attempt = attempt_of(node.record, members)  # `node.attempt` may be the next one by now
        if self._attempt != attempt:
            self._attempt, self._reported = attempt, {}
        own = read_reports(node.files, node.index, members.generation)
        if not own:
            return None
        lead = node.index == members.nodes[0]
        try:
            if self._client is None:
                self._client = self._connect()
            if not lead:
                self._client.set(f"told/{node.index}", json.dumps(encode(own)))
                if node.usage is not None:
                    self._client.set(f"used/{node.index}", json.dumps(encode(node.usage)))
                if last:
                    self._client.set(f"last/{node.index}", "")
                return None
            others = members.nodes[1:]
            if last:
                self._wait_for_last_words(others)
            ranks = [*own, *(rank for index in others for rank in self._heard(index))]
            usage = [node.usage, *map(self._used, others)]
        except RuntimeError:  # from torch: the lead, or its store, is gone
            self._client = None
            return None
        self._keep(members, ranks)
        told = [self._reported[number] for number in sorted(self._reported)]
        return with_usage(gather(node.record, self._attempt, told), usage) if told else None

    def _keep(self, members: Members, ranks: list[RankProgress]) -> None:
        began = self._node.files.began(members.generation)
        if began is not None:
            ordered = tuple(sorted(ranks, key=lambda rank: rank.number))
            self._reported[members.generation] = GenerationProgress(members, began.at, ordered)

    def _connect(self) -> TCPStore:
        meeting = self._node.files.meeting(self._generation)
        if meeting is None:
            raise RuntimeError("the address of the rendezvous is not known yet")
        return TCPStore(meeting.addr, meeting.port, is_master=False, timeout=timedelta(seconds=5))

    def _heard(self, index: int) -> Iterator[RankProgress]:
        key = f"told/{index}"
        if self._client is not None and self._client.check([key]):
            try:
                yield from (decode(RankProgress, one) for one in json.loads(self._client.get(key)))
            except (ValueError, SpecError):
                return

    def _used(self, index: int) -> WorkerUsage | None:
        key = f"used/{index}"
        if self._client is None or not self._client.check([key]):
            return None
        try:
            return decode(WorkerUsage, json.loads(self._client.get(key)))
        except (ValueError, SpecError):
            return None

    def _wait_for_last_words(self, others: tuple[int, ...]) -> None:
        keys = [f"last/{index}" for index in others]
        until = time.monotonic() + _LAST_WORDS_SECONDS
        while keys and self._client is not None and not self._client.check(keys) and time.monotonic() < until:
            time.sleep(0.01)
