"""The files by which the local engine and its workers communicate: one folder a job, on the machine that they share.

```text
job.json               the job, created exclusively: the first writer has made it
closed                 nothing may start in this job any more
standby.json           the standby workers; those that have been named in a generation since are no longer any
members/0002.json      the workers of generation 2, created exclusively; with the attempt, if it is a later one
rendezvous/0002.json   the rendezvous of generation 2: address and port of its lead worker
rendezvous/0002.began  all workers of generation 2 have joined, and their ranks are being started
node-1/agent.json      the agent of worker 1, created exclusively: a worker is started once
node-1/result.json     how it ended; an agent that is gone without this file was killed
node-1/ended           it is done, except for copying its logs to the run's storage
node-1/g0002-rank-3.*  a rank's page and its report
node-1/usage.json      what the worker uses of the machine
node-1/g0002.failed    its ranks have failed, and its agent stands by
node-1/restore-2/      files that its ranks of generation 2 fetch for each other, while they read a checkpoint
script/train.py        the script, if it is part of the run's specification
news                   a pipe: agents write to it to wake the watchers of the job
```
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from airflow_elastic.adapters.host.processes import Process
from airflow_elastic.adapters.host.small_files import write_whole, written_beside
from airflow_elastic.spec.checkpoints.phases import PhaseRecord
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.models.start import Origin
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.status import RankError
from airflow_elastic.spec.training.early_stop import Watch

T = TypeVar("T")

#: The longest time for an ended worker to copy its logs to the run's storage, in seconds.
LOG_SECONDS = 30.0

#: Prefix of the names of such folders; a generation follows.
RESTORE = "restore-"


@dataclass(frozen=True, slots=True)
class JobRecord:
    """`job.json`: everything that a worker needs to know, and which run the job belongs to."""

    name: str
    run_uri: str
    attempt: int
    spec: RunSpec
    digest: str
    machine: str
    python: str
    standby: bool = False
    origin: Origin | None = None

    def is_same(self, other: JobRecord | None) -> bool:
        """Whether both are one job, perhaps with its code in another folder or with a changed script."""
        return other is not None and replace(other, spec=self.spec) == self


@dataclass(frozen=True, slots=True)
class Members:
    """The workers of one generation, in the order of their ranks; the `awaited` ones will join a later generation.

    `attempt`: the run's attempt that it belongs to; None: the attempt that the job was made for. `spent`: the numbers
    of lost workers, which no other worker may get.
    """

    generation: int
    nodes: tuple[int, ...]
    at: float
    awaited: tuple[int, ...] = ()
    attempt: int | None = None
    spent: tuple[int, ...] | None = None

    @property
    def all(self) -> tuple[int, ...]:
        """The workers that train, and those that will join."""
        return (*self.nodes, *self.awaited)

    def spending(self, numbers: Iterable[int]) -> Members:
        """The same, with these numbers spent."""
        return replace(self, spent=tuple(sorted({*(self.spent or ()), *numbers})) or None)


@dataclass(frozen=True, slots=True)
class Standby:
    """`standby.json`: the standby workers that were asked for, and the numbers of those that were lost."""

    nodes: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Meeting:
    """The address of a rendezvous."""

    addr: str
    port: int


@dataclass(frozen=True, slots=True)
class Began:
    """All workers of a generation have joined. `at`: when its ranks were about to be started, epoch seconds."""

    at: float


@dataclass(frozen=True, slots=True)
class Result:
    """How a worker ended: `succeeded`, `failed`, `left` (sent away by a scale step), `stopped`, or `unattended`."""

    outcome: str
    at: float
    errors: tuple[RankError, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RankNote:
    """A rank's report of values with names that its script has chosen; other numbers are in its page.

    `odd`: metrics that are not finite, in words: `NaN`, `Infinity`, `-Infinity`. `early_stop`: the metric that decides
    whether training ends early. `stayed`: True if its process was in the generation before, too.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    phases: tuple[PhaseRecord, ...] = ()
    odd: Mapping[str, str] = field(default_factory=dict)
    early_stop: Watch | None = None
    stayed: bool | None = None


class JobFiles:
    """The folder of one job.

    Attributes:
        folder: the folder.
        poll_seconds: how often to look for a document that is expected soon.
        standby_seconds: how often an agent looks that may wait for long.
    """

    poll_seconds = 0.005
    standby_seconds = 0.01

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: dict[str, object] = {}

    def node(self, index: int) -> Path:
        """The folder of one worker."""
        return self.folder / f"node-{index}"

    @property
    def scripts(self) -> Path:
        """The folder for a script that is part of the run's specification: the same for all workers."""
        return self.folder / "script"

    def forget_fetched(self, node: str = "node-*") -> None:
        """Remove files that ranks had fetched before they were killed, for one worker or for all."""
        for left in self.folder.glob(f"{node}/{RESTORE}*"):
            shutil.rmtree(left, ignore_errors=True)

    def create(self, name: str, document: object) -> bool:
        """Write a document unless there is one; True to exactly one caller. Never seen half written."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_beside(path, _encoded(document)) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
        return True

    def write(self, name: str, document: object) -> None:
        """Write or replace a document at once."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, _encoded(document))

    def read(self, name: str, kind: type[T]) -> T | None:
        """A document; None where there is none that can be read."""
        try:
            return decode(kind, json.loads((self.folder / name).read_bytes()))
        except (OSError, ValueError, SpecError):
            return None

    def keep(self, name: str, kind: type[T]) -> T | None:
        """A document that never changes once it is there, so it is read once: reading often slows training down."""
        kept = self._kept.get(name)
        if isinstance(kept, kind):
            return kept
        found = self.read(name, kind)
        if found is not None:
            self._kept[name] = found
        return found

    @property
    def record(self) -> JobRecord | None:
        """The job; None before it is made."""
        return self.keep("job.json", JobRecord)

    @property
    def closed(self) -> bool:
        """Whether nothing may start any more."""
        return (self.folder / "closed").exists()

    def members(self, generation: int) -> Members | None:
        """The workers of one generation; None while there is no such generation."""
        return self.keep(f"members/{generation:04d}.json", Members)

    def newest_members(self) -> Members | None:
        """The workers of the newest generation."""
        with contextlib.suppress(OSError):
            names = [name for name in os.listdir(self.folder / "members") if name.endswith(".json")]
            if names:
                return self.keep(f"members/{max(names)}", Members)
        return None

    def superseded(self, generation: int) -> bool:
        """Whether there is a newer generation. Called many times a second."""
        return (self.folder / f"members/{generation + 1:04d}.json").exists()

    def look_anew(self) -> None:
        """Forget cached documents; a folder has no cache."""

    def begin(self, members: Members) -> bool:
        """Begin a generation; False where somebody else has begun one of that number."""
        return self.create(f"members/{members.generation:04d}.json", members)

    def rejoin(
        self,
        attempt: int,
        lost: Collection[int] = (),
        fresh: Callable[[Members], Iterator[int]] | None = None,
        standby: Collection[int] = (),
    ) -> tuple[int, ...]:
        """Begin a generation of the same workers for this attempt. Nothing if there is one already, or no such job.

        Args:
            attempt: number of the attempt.
            lost: workers whose ranks other workers take over.
            fresh: returns numbers for these. Default: numbers that no worker of the job has had.
            standby: workers that take their places first.

        Returns:
            The workers that took the places of lost ones as the attempt began, now or in an earlier call.
        """
        while not self.closed:
            record, members = self.record, self.newest_members()
            if record is None or members is None or attempt_of(record, members) >= attempt:
                break
            following = replace(members, generation=members.generation + 1, attempt=attempt)
            if lost:
                following = following.spending(lost)
                others = fresh(following) if fresh else itertools.count(max(self.nodes()) + 1)
                others = itertools.chain(standby, others)
                nodes = tuple(next(others) if node in lost else node for node in members.nodes)
                following = replace(following, nodes=nodes)
            self.begin(following)
            self.look_anew()  # another caller may have begun one, based on the former members
        return self._replacements(attempt) if lost else ()

    def _replacements(self, attempt: int) -> tuple[int, ...]:
        """The workers of the attempt's first generation that were not in the one before."""
        for before, following in itertools.pairwise(self.generations()):
            if before.attempt != following.attempt == attempt:
                return tuple(node for node in following.nodes if node not in before.nodes)
        return ()

    def generations(self) -> list[Members]:
        """All generations so far, oldest first."""
        newest = self.newest_members()
        found = (self.members(number) for number in range(1, newest.generation + 1)) if newest else ()
        return [members for members in found if members]

    def nodes(self) -> list[int]:
        """Every worker the job ever had, in order."""
        asked = self.read("standby.json", Standby) or Standby()
        return sorted(self._trained().union(asked.nodes, asked.lost))

    def _trained(self) -> set[int]:
        return {node for members in self.generations() for node in members.all}

    def standby(self) -> Standby:
        """Its standby workers, without those that were named in a generation."""
        asked = self.read("standby.json", Standby)
        if asked is None:
            return Standby()
        trained = self._trained()
        return replace(asked, nodes=tuple(node for node in asked.nodes if node not in trained))

    def ask_standby(self, wanted: int, is_lost: Callable[[int], bool], first: int = 0) -> Standby | None:
        """Ask for new standby workers in place of those that were named or lost, up to `wanted`.

        Args:
            wanted: how many there should be.
            is_lost: whether a standby worker has ended.
            first: smallest number of a new one.

        Returns:
            All standby workers, with the new ones; None if there are enough.
        """
        now = self.standby()
        lost = tuple(node for node in now.nodes if is_lost(node))
        there = tuple(node for node in now.nodes if node not in lost)
        if len(there) >= wanted:
            return None
        first = max((first - 1, *self.nodes(), *self._spent())) + 1
        fresh = tuple(range(first, first + wanted - len(there)))
        following = Standby((*there, *fresh), (*now.lost, *lost))
        self.write("standby.json", following)
        return following

    def _spent(self) -> tuple[int, ...]:
        members = self.newest_members()
        return (members.spent or ()) if members else ()

    def meeting(self, generation: int) -> Meeting | None:
        """Where a generation met; None before its lead worker has said so."""
        return self.keep(f"rendezvous/{generation:04d}.json", Meeting)

    def began(self, generation: int) -> Began | None:
        """When all workers of a generation had come; None before."""
        return self.keep(f"rendezvous/{generation:04d}.began", Began)

    def stand_by(self, index: int, generation: int) -> None:
        """Record that a worker's ranks of this generation have failed, and that its agent is there."""
        self.create(f"node-{index}/g{generation:04d}.failed", {})
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # nobody watches now
            pipe = os.open(self.news, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(pipe, b".")
            os.close(pipe)

    def stands_by(self, index: int, generation: int) -> bool:
        """Whether this was recorded."""
        return (self.node(index) / f"g{generation:04d}.failed").exists()

    def end(self, index: int) -> None:
        """Record that a worker with a result is done, except for copying its logs."""
        self.create(f"node-{index}/ended", {})
        self._wake()

    def has_ended(self, index: int) -> bool:
        """Whether this was recorded: its process may go on for a while."""
        return (self.node(index) / "ended").exists()

    @property
    def news(self) -> Path:
        """The pipe, if somebody watches."""
        return self.folder / "news"

    def agent(self, index: int) -> Process | None:
        """The agent of a worker, alive or not; None before it has started."""
        return self.keep(f"node-{index}/agent.json", Process)

    def result(self, index: int) -> Result | None:
        """How a worker ended; None if it has not, or was killed."""
        return self.read(f"node-{index}/result.json", Result)

    def has_finished(self, members: Members, without: int) -> bool:
        """Whether one of these workers, other than `without`, has finished the training."""
        results = (self.result(index) for index in members.nodes if index != without)
        return any(result is not None and result.outcome == "succeeded" for result in results)


def attempt_of(record: JobRecord, members: Members | None) -> int:
    """Number of the run's attempt that a generation belongs to."""
    return record.attempt if members is None or members.attempt is None else members.attempt


def _encoded(document: object) -> bytes:
    return json.dumps(encode(document)).encode()
