"""The state of one worker in its agent: the pages of its ranks, and its orders. SIGTERM means: save and end."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.host.processes import Process, out_of_memory_kills
from airflow_elastic.adapters.host.shared_page import Page
from airflow_elastic.adapters.records import journal
from airflow_elastic.adapters.records.job_files import JobFiles, JobRecord, Members, attempt_of
from airflow_elastic.adapters.records.mailbox import CheckpointTrouble, Mailbox
from airflow_elastic.adapters.records.reports import read_orders
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.launchers.read_early import threads
from airflow_elastic.runtime.agent.reporting.evidence import rank_error
from airflow_elastic.runtime.agent.reporting.memory_shortage import MemoryShortage
from airflow_elastic.runtime.staying.rank_links import RankLinks, StayingRank
from airflow_elastic.runtime.tiers.disk.copies import WorkerDisk
from airflow_elastic.runtime.tiers.peers.buddy_memory import BuddyMemory
from airflow_elastic.runtime.tiers.peers.connection import Buddy
from airflow_elastic.runtime.tiers.peers.peer_client import ENVIRONMENT as LOANS
from airflow_elastic.runtime.tiers.shared_memory import KEEPS, StagingSlots
from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.errors import ElasticError, StoreError
from airflow_elastic.spec.status import RankError, WorkerUsage

if TYPE_CHECKING:
    from airflow_elastic.runtime.tiers.peers.peer_server import PeerServer

log = logging.getLogger(__name__)

#: The address of every worker of the local engine.
LOCALHOST = "127.0.0.1"


def _name(generation: int) -> str:
    """Prefix of the file names of a generation's ranks."""
    return f"g{generation:04d}"


def _have_saved(pages: Iterable[Page]) -> bool:
    """Whether all these ranks have saved and wait to be ended, or have finished the training."""
    return all(one.words[shared_page.PARKED] or one.words[shared_page.FINISHED] for one in pages)


class Stopped(Exception):
    """The worker ends: its ranks have saved, or their time for that has run out."""


@dataclass
class Worker:
    """A worker: a process on this machine, or a pod.

    Attributes:
        files: the job's folder.
        record: the job.
        index: number of this worker.
        store: where the run is stored.
        members: the workers of the generation that its ranks belong to; None before the first.
        address: where other workers reach this one.
        meeting_store: the store of the generation's rendezvous, through which workers report to their lead.
        stop_at: when it got the order to end, on the monotonic clock; None until then.
        slots: the memory that its ranks save into.
        persist: writes their saves to storage.
        keeper: the memory for another worker's states; None if workers do not keep each other's states.
        neighbour: the worker that keeps this one's states in its generation; None if there is none.
        lender: serves the states in memory to other workers' ranks; None if workers do not keep each other's states,
            or if storage is as near.
        disk: the run's copies on the disk of this machine; None if workers do not use it.
        shortage: observes whether memory is short.
        processes: the processes of its ranks, by global rank. If a launcher starts the ranks, that of the launcher.
        keep_logs: notes where its ranks write their logs, which a thread copies to storage.
        unattended: why it ends without an order; None if it does not.
        standing_by: whether its ranks have failed, and it waits for a generation with new ones.
        links: connections of its ranks that are in `run.train`.
        staying: ranks that go on in their processes in the next generation, by local rank.
        usage: what it uses of its machine, as last measured.
    """

    files: JobFiles
    record: JobRecord
    index: int
    store: Store
    members: Members | None = None
    address: str = LOCALHOST
    meeting_store: Any = None
    stop_at: float | None = None
    unattended: str | None = None
    standing_by: bool = False
    slots: StagingSlots = field(init=False)
    persist: Callable[[], None] = field(default=lambda: None)
    keeper: BuddyMemory | None = None
    neighbour: Buddy | None = None
    lender: PeerServer | None = None
    disk: WorkerDisk | None = None
    keep_logs: Callable[[], None] = field(default=lambda: None)
    shortage: MemoryShortage = field(default_factory=MemoryShortage)
    processes: dict[int, Process] = field(default_factory=dict)
    usage: WorkerUsage | None = None
    links: RankLinks = field(default_factory=RankLinks)
    staying: dict[int, StayingRank] = field(default_factory=dict)
    _park_at: float | None = None
    _half_over: bool = False
    _failed: bool | None = None
    _oom_kills: int = field(default_factory=out_of_memory_kills)

    def __post_init__(self) -> None:
        self.slots = StagingSlots(self.record.spec.workers.procs)

    @property
    def logs(self) -> Path:
        """The folder for the output of ranks: in the run itself if that is a folder, else in the job's folder."""
        folder = self.store.local_path(
            layout.attempt_logs(self.attempt).rstrip("/")
        ) or self.files.folder / "logs" / str(self.attempt)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def rank_files(self) -> Path:
        """Prefix of the files of this generation's ranks on this worker."""
        return self.files.node(self.index) / _name(self.generation)

    def rank_logs(self) -> list[Path]:
        """The log files of this worker's ranks in its generation."""
        if self.members is None or self.index not in self.members.nodes:
            return []
        procs = self.record.spec.workers.procs
        first = self.members.nodes.index(self.index) * procs
        paths = [self.logs / layout.rank_log(self.generation, rank) for rank in range(first, first + procs)]
        return [path for path in paths if path.exists()]

    def environment(self) -> dict[str, str]:
        """The environment of this worker's ranks, without the variables that the launcher sets."""
        spec, record = self.record.spec, self.record
        from_files = {s.name: Path(s.key).read_text().strip() for s in spec.secrets if s.source == "file"}
        user = self.store.local_path("user")
        if user is not None:
            user.mkdir(parents=True, exist_ok=True)
        count = threads(self.neighbours * spec.workers.procs)
        return {
            "OMP_NUM_THREADS": str(count),
            **spec.env,
            **from_files,
            **self.slots.environment(),
            **({LOANS: self.lender.path} if self.lender else {}),
            **({KEEPS: str(self.keeper.have_bytes)} if self.keeper and self.neighbour else {}),
            "AIRFLOW_ELASTIC_RUN_URI": record.run_uri,
            "AIRFLOW_ELASTIC_ATTEMPT": str(self.attempt),
            "AIRFLOW_ELASTIC_GENERATION": str(self.generation),
            "AIRFLOW_ELASTIC_JOB": record.name,
            "AIRFLOW_ELASTIC_WORKER": f"node-{self.index}",
            "AIRFLOW_ELASTIC_PROCESSORS": str(count),
            "AIRFLOW_ELASTIC_RANK_FILES": str(self.rank_files),
            "AIRFLOW_ELASTIC_CHECKPOINT": json.dumps(encode(spec.checkpoint)),
            **({"AIRFLOW_ELASTIC_ORIGIN": json.dumps(encode(record.origin))} if record.origin else {}),
            **({"AIRFLOW_ELASTIC_EVALUATION": "1"} if spec.evaluation else {}),
            **({"AIRFLOW_ELASTIC_EARLY_STOP": spec.early_stop} if spec.early_stop else {}),
            **({"AIRFLOW_ELASTIC_DISK": str(self.disk.root)} if self.disk else {}),
            "AIRFLOW_ELASTIC_RESUME_PATH": str(user or f"{record.run_uri}/user"),
        }

    @property
    def neighbours(self) -> int:
        """How many workers share this one's processors and memory, itself included. With the local engine: all."""
        members = self.members or self.files.newest_members()
        return len(members.nodes) if members and self.address == LOCALHOST else 1

    @cached_property
    def run(self) -> str:
        """Identity of the run that this worker was started for: another run may begin later at the same URI.

        Raises:
            StoreError: storage is out of reach, and the identity has not been read before.
        """
        return journal.identity(self.store)

    @property
    def generation(self) -> int:
        """Number of the rendezvous that its ranks belong to; 0 before the first."""
        return self.members.generation if self.members else 0

    @property
    def attempt(self) -> int:
        """Number of the attempt that its ranks belong to."""
        return attempt_of(self.record, self.members)

    @property
    def follows_its_own(self) -> bool:
        """Whether the generation before belongs to the same attempt."""
        former = self.files.members(self.generation - 1) if self.generation > 1 else None
        return former is not None and attempt_of(self.record, former) == self.attempt

    @property
    def is_lead(self) -> bool:
        """Whether it is the first worker of the newest generation, which reports for all."""
        members = self.files.newest_members()
        return members is not None and members.nodes[0] == self.index

    # -- orders --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Note that the worker must end."""
        self.stop_at = self.stop_at or time.monotonic()

    def superseded(self) -> bool:
        """Whether there is a newer generation than that of the ranks."""
        return self.files.superseded(self.generation)

    def replaced(self) -> bool:
        """Whether another attempt begins in place of its ranks' failed one: then nothing more must be saved."""
        return attempt_of(self.record, self.files.newest_members()) > self.attempt

    def parked(self) -> bool:
        """Ask the ranks to finish their step and save. Returns whether they have, or whether their time has run out.

        It does not wait for ranks that do not use this runtime, because they do not know of the order. Nor does it wait
        if their attempt has failed or a peer is known to be lost, because they cannot finish a step. If a peer is lost,
        its states that are kept here are written.
        """
        if self.replaced() or self._has_failed():
            return True
        if self.keeper is not None and self.keeper.is_surely_lost:
            self.flush()  # the others may go on in the same attempt without that worker
            return True
        self._park_at = self._park_at or time.monotonic()
        pages = [Page(path) for path in self.pages()]
        try:
            for one in pages:
                one.words[shared_page.PARK] = 1
            if _have_saved(pages):
                self.flush()
                return True
        finally:
            for one in pages:
                one.close()
        waited, grace = time.monotonic() - self._park_at, self.record.spec.health.grace_seconds
        if waited > grace / 2 and not self._half_over:
            self._half_over = True
            self.flush()  # the ranks may hang: write their earlier saves while there is time
        return waited > grace

    def _has_failed(self) -> bool:
        """Whether this worker must end because its attempt has failed. Then it need not save first."""
        if self._failed is None and self.stop_at is not None:
            try:
                self._failed = read_orders(self.store, self.attempt).failed is True
            except StoreError as error:
                log.warning("the reason why this worker must end cannot be read: %s", error)
                self._failed = False
        return self._failed is True

    def flush(self) -> None:
        """Write the ranks' saves to storage, before a later step needs them. A failure is only logged."""
        try:
            self.persist()
        except ElasticError as error:
            log.warning("the checkpoint could not be written: %s", error)

    @property
    def patience(self) -> float:
        """Seconds that ranks get between SIGTERM and SIGKILL.

        Ranks that use this runtime have saved before SIGTERM. Others get the grace period to save, if they must leave.
        After a failure there is nothing to wait for: a rank that is blocked in a collective cannot even run a signal
        handler.
        """
        leaving = (self.stop_at is not None and not self._has_failed()) or (
            self.superseded() and not self.replaced()
        )
        return self.record.spec.health.grace_seconds if leaving and not self.pages() else 1.0

    def begin(self, members: Members) -> None:
        """Go over to another generation, whose ranks are about to start."""
        if attempt_of(self.record, members) > self.attempt:
            if self.keeper is not None:
                self.keeper.without(members.all)
            self.flush()  # as part of the old attempt, because the new one goes on from these saves
            self.keep_logs()
            if self.keeper is not None and self.keeper.lost is not None:
                self.flush()  # again: the peer may have been lost meanwhile, or storage may have failed
        self.files.forget_fetched(f"node-{self.index}")
        self.files.node(self.index).mkdir(parents=True, exist_ok=True)
        self.members, self._park_at, self._half_over, self.standing_by = members, None, False, False
        self.count_kills()

    def count_kills(self) -> None:
        """Note how many processes the kernel has killed for memory so far: none of them was one of these ranks."""
        self._oom_kills = out_of_memory_kills()
        self.shortage.begin()

    def order_saves(self, count: int) -> None:
        """Write into the ranks' pages how many orders to save there have been."""
        self.tell_ranks({shared_page.SAVE: count})

    def tell_ranks(self, words: Mapping[int, float]) -> None:
        """Write these words into the pages of this generation's ranks, in this order."""
        for path in self.pages():
            one = Page(path)
            for number, word in words.items():
                one.words[number] = word
            one.close()

    def tell_unsaved(self, step: int, reason: str) -> bool:
        """Report to the controller that a state could not be stored. Returns whether the report was stored."""
        return self._tell_trouble("unsaved", step, reason)

    def tell_unpruned(self, step: int, reason: str) -> None:
        """Report to the controller why no checkpoint was removed: perhaps only old ones are undamaged."""
        self._tell_trouble("unpruned", step, reason)

    def tell_refused(self, step: int, reason: str) -> None:
        """Report to the controller that a copy of a state is damaged, and so is not used."""
        log.warning("a copy of checkpoint %d is not used: %s", step, reason)
        self._tell_trouble("refused", step, reason)

    def _tell_trouble(self, kind: str, step: int, reason: str) -> bool:
        trouble = CheckpointTrouble(self.attempt, step, reason)
        try:
            Mailbox(self.store).post(kind, by=f"node-{self.index}", checkpoint=trouble)
        except ElasticError as error:
            log.warning("checkpoint %d is %s, and this cannot be reported either: %s", step, kind, error)
            return False
        return True

    def step(self) -> int:
        """The newest step that all ranks of this worker have done; 0 if they do not report it."""
        words = [words for path in self.pages() if (words := shared_page.read_words(path)) is not None]
        return int(min((one[shared_page.STEP] for one in words), default=0))

    @property
    def finished(self) -> bool:
        """Whether all ranks of this worker have reported that training is complete."""
        words = [shared_page.read_words(path) for path in self.pages()]
        return bool(words) and all(one is not None and one[shared_page.FINISHED] for one in words)

    def verified(self) -> tuple[int, float] | None:
        """The step of the checkpoint that all ranks of this generation have read whole, from storage only, and when.

        None if they have not.
        """
        for words in filter(None, map(shared_page.read_words, self.pages())):
            if words[shared_page.VERIFIED]:
                return int(words[shared_page.FROM_STEP]), words[shared_page.VERIFIED]
        return None

    def pages(self) -> list[Path]:
        """The pages of this generation's ranks on this worker."""
        return self._pages(self.generation)

    def _pages(self, generation: int) -> list[Path]:
        return list(self.files.node(self.index).glob(f"{_name(generation)}-rank-*.page"))

    def saved_and_left(self, generation: int) -> bool:
        """Whether this worker had ranks in a generation, and all of them saved before they left."""
        pages = [Page(path) for path in self._pages(generation)]
        try:
            return bool(pages) and _have_saved(pages)
        finally:
            for one in pages:
                one.close()

    # -- evidence ------------------------------------------------------------------------------------------------

    def note(self, rank: int, pid: int) -> None:
        """Note the process of a rank."""
        if (process := Process.of(pid)) is not None:
            self.processes[rank] = process

    def rank_error(self, rank: int, exit_code: int) -> RankError:
        """How a rank died. `exit_code` is as subprocess gives it: negative for a signal."""
        return rank_error(self, rank, exit_code, self._oom_kills)
