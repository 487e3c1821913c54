"""Recovery before ranks start: agents make a checkpoint from states on their disks that storage does not have.

Each agent reports the parts that it has found. The lead chooses who writes which part to storage. All agents wait until
every part is written: then the state is a checkpoint like any other.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints, journal
from airflow_elastic.adapters.records.checkpoint_parts import Superseded, tell
from airflow_elastic.adapters.records.mailbox import CheckpointTrouble
from airflow_elastic.core.checkpoints.recovery_choice import PartOnDisk, StateVersion, choose
from airflow_elastic.runtime.tiers.disk.copies import age_of
from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import ElasticError, InvalidInput

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

    from airflow_elastic.adapters.records.job_files import Members
    from airflow_elastic.runtime.tiers.disk.copies import DiskCopy, WorkerDisk
    from airflow_elastic.runtime.tiers.worker import TierWorker
    from airflow_elastic.spec.checkpoints.manifest import Manifest

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.005

T = TypeVar("T")


class NotRecovered(ElasticError):
    """Workers have a newer state on their disks than storage has, and it could not be made a checkpoint."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A checkpoint in storage, and the folder of its data."""

    age: StateVersion
    data: str


@dataclass(frozen=True, slots=True)
class _Found:
    """What an agent reports: the newest checkpoint in storage, parts on its disk, or why the disk cannot be used."""

    stored: _Stored
    offers: tuple[PartOnDisk, ...]
    unusable: str | None = None


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The lead's choice: the parts to write, and the data folder that also stays on disks. Or why the run must end."""

    offers: tuple[PartOnDisk, ...]
    kept: str
    refused: str | None = None

    def by(self, node: TierWorker) -> list[PartOnDisk]:
        """The parts that this worker must write."""
        return [one for one in self.offers if one.by == node.index]


@dataclass(frozen=True, slots=True)
class _Done:
    """An agent has done its share of a step, or reports what went wrong."""

    trouble: str | None = None


class _Cut(Exception):
    """The generation was superseded, or this worker must end."""


def recover(node: TierWorker, members: Members, store: TCPStore) -> bool:
    """Write the newest complete state on the workers' disks to storage, if storage has no newer checkpoint.

    Args:
        node: this worker.
        members: members of the generation that is about to begin.
        store: the store of their rendezvous.

    Returns:
        Whether the generation can begin. False if it was superseded, or this worker must end.

    Raises:
        InvalidInput: the run begins, and no worker can use the folder of checkpoint.disk.
        NotRecovered: there is such a state, but it could not be written. Or a worker did not answer, and no worker read
            or wrote, for `health.start_seconds`. The state stays on the disks for the next attempt.
    """
    if node.disk is None:
        return True
    try:
        _recover(node, node.disk, members, _Together(node, members, store))
    except _Cut:
        return False
    return True


def _recover(node: TierWorker, disk: WorkerDisk, members: Members, together: _Together) -> None:
    stored = _newest(node)
    mine = _Copies(disk, node, stored.age)
    chosen = _agree(node, members, together, mine, stored)
    kept = [chosen.kept]
    if chosen.offers:
        step = chosen.offers[0].age.step
        data = layout.recovered_data(step, node.attempt, members.generation)
        copies = [mine.first(one) for one in chosen.by(node)]
        here = [(copy, _as_ours(node, members, copy.manifest, data)) for copy in copies]
        log.info("workers have step %d on their disks: %d parts of it are written from here", step, len(here))
        if node.index == members.nodes[0]:
            _make_way(node, step, max(0, stored.age.step))
        together.gather("way", _Done())
        written = _Done(_write(node, here, together))
        troubles = [one.trouble for one in together.gather("written", written) if one.trouble]
        if troubles:
            raise NotRecovered(
                f"workers have step {step} on their disks, which could not be written to {node.store.uri}: "
                f"{troubles[0]}"
            )
        if _is_stored(node, step, data):
            for copy, ours in here:
                disk.settle(copy, ours)
            kept.append(data)
        else:
            kept += [copy.manifest.data for copy in copies]
            kept += [
                layout.checkpoint_data(one.age.step, one.age.attempt, one.age.generation)
                for one in chosen.offers
            ]
        together.gather("settled", _Done())  # other workers may use the same disk
    disk.tidy(kept)
    together.gather("tidy", _Done())  # no worker writes before


def _agree(
    node: TierWorker, members: Members, together: _Together, mine: _Copies, stored: _Stored
) -> _Chosen:
    """Choose the newest state that is whole. Each worker checks its chosen parts; if one is damaged, choose again."""
    number, is_lead = 0, node.index == members.nodes[0]
    while True:
        together.say(f"found/{number}/{node.index}", _Found(stored, mine.offers, mine.unusable))
        if is_lead:
            everybody = together.hear_all(f"found/{number}", _Found)
            newest = max((one.stored for one in everybody), key=lambda one: one.age)
            now = StateVersion(node.attempt, members.generation)
            complete = choose((offer for one in everybody for offer in one.offers), newest.age, now)
            is_new = node.attempt == 1 and newest.age == StateVersion()
            refused = _refused(everybody) if is_new else None
            together.say(f"chosen/{number}", _Chosen(complete, newest.data, refused))
        chosen = together.hear(f"chosen/{number}", _Chosen)
        if chosen.refused:
            together.say(f"heard/{node.index}", _Done())
            if is_lead:  # the store ends with the lead, so it waits for the others
                together.hear_all("heard", _Done)
            raise InvalidInput(chosen.refused)
        if not chosen.offers:
            return chosen
        damaged = 0
        for one in chosen.by(node):
            damaged += not mine.has_whole(one)
            together.goes_on()
        trouble = f"node-{node.index} has {damaged} damaged parts of it" if damaged else None
        troubles = [one.trouble for one in together.gather(f"whole/{number}", _Done(trouble)) if one.trouble]
        if not troubles:
            return chosen
        if is_lead:
            log.warning("step %d is not recovered: %s", chosen.offers[0].age.step, "; ".join(troubles))
        number += 1


def _refused(everybody: Sequence[_Found]) -> str | None:
    """Why no worker can use its disk: checkpoint.disk names a wrong folder, so the run must not begin.

    None if a worker can. Disks that fail on some workers only, or later in the run, are only reported.
    """
    why = [one.unusable for one in everybody]
    return why[0] if all(why) else None


def _newest(node: TierWorker) -> _Stored:
    """The newest checkpoint in storage that can be read."""
    is_ours = journal.is_ours(node.store)
    for step in reversed(checkpoints.steps(node.store)):
        try:
            manifest = checkpoints.read(node.store, step)
        except checkpoints.CheckpointDamaged:
            continue
        if not is_ours(manifest):
            continue  # another run's: ranks refuse it, and it must not lead to any removal
        return _Stored(age_of(manifest), manifest.data)
    return _Stored(StateVersion(), "")


def _make_way(node: TierWorker, step: int, newest: int) -> None:
    """Set aside a damaged checkpoint in storage if it has the step of a state that workers have whole."""
    try:
        checkpoints.read(node.store, step)
    except checkpoints.OtherVersion:
        return  # another release may read it
    except checkpoints.CheckpointDamaged as error:
        if step in checkpoints.steps(node.store):
            log.warning("checkpoint %d is damaged, and workers have it on their disks: %s", step, error)
            trouble = CheckpointTrouble(node.attempt, step, str(error), newest)
            checkpoint_retention.set_aside(node.store, trouble, by=f"node-{node.index}")


def _is_stored(node: TierWorker, step: int, data: str) -> bool:
    """Whether the state is a checkpoint now. If one of another release has its step, the copies on disks stay."""
    try:
        return checkpoints.read(node.store, step).data == data
    except checkpoints.CheckpointDamaged as error:
        log.warning("what workers have on their disks of step %d is not used: %s", step, error)
        return False


class _Copies:
    """The parts of states on this machine's disk. Several workers' folders may have the same part.

    Args:
        disk: the disk. It is optional: if it fails, there are fewer parts, or none.
        node: this worker.
        newest: the newest checkpoint in storage. States of the same step, or older, are not needed. Nor are those of
            attempts before the last one that went on from a chosen checkpoint.

    Attributes:
        unusable: why the disk cannot be used; None if it can.
    """

    def __init__(self, disk: WorkerDisk, node: TierWorker, newest: StateVersion) -> None:
        self._refused = node.tell_refused
        self._copies: defaultdict[PartOnDisk, list[DiskCopy]] = defaultdict(list)
        self._whole: set[PartOnDisk] = set()
        self.unusable: str | None = None
        try:
            first = checkpoint_retention.resumed_by(node.store)
            for copy in disk.found(self._refused):
                part = copy.record.part
                if copy.age.step > newest.step and copy.age.attempt >= first:
                    offer = PartOnDisk(node.index, copy.age, copy.manifest.reason, part.node, part.of)
                    self._copies[offer].append(copy)
        except (ElasticError, OSError) as error:
            log.warning("this machine's disk cannot be read, so its copies are not used: %s", error)
            self.unusable = str(error)

    @property
    def offers(self) -> tuple[PartOnDisk, ...]:
        """The parts that this worker can write."""
        return tuple(offer for offer, copies in self._copies.items() if copies)

    def has_whole(self, offer: PartOnDisk) -> bool:
        """Whether one of its copies is intact. Reads them in turn; damaged ones are reported, and not offered again."""
        copies = self._copies[offer]
        while copies and offer not in self._whole:
            damage = copies[0].damage()
            if damage is None:
                self._whole.add(offer)
            else:
                self._refused(offer.age.step, damage)
                del copies[0]
        return bool(copies)

    def first(self, offer: PartOnDisk) -> DiskCopy:
        """The copy that `has_whole` found to be intact."""
        return self._copies[offer][0]


def _as_ours(node: TierWorker, members: Members, old: Manifest, data: str) -> Manifest:
    """The manifest for a part, rewritten for this attempt."""
    files = tuple(replace(file, key=data + file.key.removeprefix(old.data)) for file in old.files)
    return replace(
        old,
        attempt=node.attempt,
        generation=members.generation,
        created_at=time.time(),
        data=data,
        files=files,
        run=node.run,
    )


def _write(node: TierWorker, parts: Sequence[tuple[DiskCopy, Manifest]], together: _Together) -> str | None:
    """Write parts of a state to storage. Returns why that failed, or None."""
    try:
        for copy, ours in parts:
            here = Path(copy.folder.uri)
            for file, target in zip(copy.manifest.files, ours.files, strict=True):
                node.store.upload(target.key, here / file.key)
                together.goes_on()
            for account in copy.record.accounts:
                node.store.put(account.key, (here / account.key).read_bytes())
            # If a checkpoint with its name is damaged, `_is_stored` reports it.
            with contextlib.suppress(checkpoints.CheckpointDamaged):
                tell(node.store, replace(copy.record.part, manifest=ours))
    except Superseded as error:
        node.stop()
        return str(error)
    except (ElasticError, OSError) as error:
        return f"node-{node.index}: {error}"
    return None


class _Together:
    """Messages between the agents of a generation, through the store of their rendezvous."""

    def __init__(self, node: TierWorker, members: Members, store: TCPStore) -> None:
        self._node, self._members, self._store = node, members, store
        self._seconds = node.record.spec.health.start_seconds
        self._give_up, self._done = time.monotonic() + self._seconds, 0

    def say(self, what: str, message: object) -> None:
        self._store.set(f"disk/{what}", json.dumps(encode(message)))

    def hear(self, what: str, kind: type[T]) -> T:
        """Wait for a message. Raises _Cut if the worker must end, or a newer generation has begun."""
        while not self._store.check([f"disk/{what}"]):
            if self._node.stop_at is not None or self._node.files.closed or self._node.superseded():
                raise _Cut
            if time.monotonic() > self._give_up and not self._renewed():
                raise NotRecovered(
                    f"recovery from the workers' disks: `{what}` was not sent, and no worker "
                    f"read or wrote, within {self._seconds:.0f} s"
                )
            time.sleep(_POLL_SECONDS)
        return decode(kind, json.loads(self._store.get(f"disk/{what}")))

    def goes_on(self) -> None:
        """Note progress: the others wait longer for this worker."""
        self._store.add("disk/done", 1)

    def _renewed(self) -> bool:
        """Whether any worker has noted progress since the last call. Restarts the timeout."""
        before, self._done = self._done, self._store.add("disk/done", 0)
        self._give_up = time.monotonic() + self._seconds
        return self._done > before

    def gather(self, what: str, message: T) -> list[T]:
        """Send this worker's message and wait for those of all, in the order of the workers. Raises as `hear`."""
        self.say(f"{what}/{self._node.index}", message)
        return self.hear_all(what, type(message))

    def hear_all(self, what: str, kind: type[T]) -> list[T]:
        """Wait for the messages of all workers, in their order. Raises as `hear`."""
        return [self.hear(f"{what}/{index}", kind) for index in self._members.nodes]
