"""What agents find on their machines' disks, that storage does not have: all of them together make a checkpoint of it.

Before ranks start. Each agent says what it has found, the lead says what of that is written by whom, and nobody goes on
before it is: from there on it is a checkpoint like any other.
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
    """What an agent has found: the newest checkpoint in storage, what it offers, and why its disk cannot be used."""

    stored: _Stored
    offers: tuple[PartOnDisk, ...]
    unusable: str | None = None


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Who is to write what, and what may stay on disks beside that; or why the run does not begin."""

    offers: tuple[PartOnDisk, ...]
    kept: str
    refused: str | None = None

    def by(self, node: TierWorker) -> list[PartOnDisk]:
        """What this worker is to write."""
        return [one for one in self.offers if one.by == node.index]


@dataclass(frozen=True, slots=True)
class _Done:
    """What is wrong with an agent's share; None where nothing is."""

    trouble: str | None = None


class _Cut(Exception):
    """The end of the generation, or of this worker, has come meanwhile."""


def recover(node: TierWorker, members: Members, store: TCPStore) -> bool:
    """Have the newest state that all workers together have on their disks written to storage, where it is newer.

    Args:
        node: this worker.
        members: of the generation that is about to begin.
        store: of their meeting.

    Returns:
        Whether the generation can begin; False where its end, or this worker's, has come meanwhile.

    Raises:
        InvalidInput: the run is to begin, and nobody can use the folder that is named for it.
        NotRecovered: there is such a state, and it could not be written; or a worker has not answered, and nobody has
            read or written anything, for as long as a start may take. It is still there, for the next attempt.
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
        together.gather("settled", _Done())  # others may have theirs in a folder of this machine
    disk.tidy(kept)
    together.gather("tidy", _Done())  # nobody writes before


def _agree(
    node: TierWorker, members: Members, together: _Together, mine: _Copies, stored: _Stored
) -> _Chosen:
    """What goes on: the newest state that is whole. Only what has been chosen is read; where that is damaged, again."""
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
            if is_lead:  # with whom the store goes
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
            log.warning("step %d is not what goes on: %s", chosen.offers[0].age.step, "; ".join(troubles))
        number += 1


def _refused(everybody: Sequence[_Found]) -> str | None:
    """Why nobody can use the folder: a run that begins was given a wrong one. None where somebody can; of the others,
    and of a disk that fails later, it is only told.
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
            continue  # ranks refuse it, and nothing is removed for it
        return _Stored(age_of(manifest), manifest.data)
    return _Stored(StateVersion(), "")


def _make_way(node: TierWorker, step: int, newest: int) -> None:
    """Set aside what stands in storage under the name of a state that workers have whole, and that nobody can read."""
    try:
        checkpoints.read(node.store, step)
    except checkpoints.OtherVersion:
        return  # another release may
    except checkpoints.CheckpointDamaged as error:
        if step in checkpoints.steps(node.store):
            log.warning("checkpoint %d is damaged, and workers have it on their disks: %s", step, error)
            trouble = CheckpointTrouble(node.attempt, step, str(error), newest)
            checkpoint_retention.set_aside(node.store, trouble, by=f"node-{node.index}")


def _is_stored(node: TierWorker, step: int, data: str) -> bool:
    """Whether it is a checkpoint now. There may be one of another release: then what is on disks stays there."""
    try:
        return checkpoints.read(node.store, step).data == data
    except checkpoints.CheckpointDamaged as error:
        log.warning("what workers have on their disks of step %d is not used: %s", step, error)
        return False


class _Copies:
    """The parts of states that are on this machine's disk, each perhaps in several workers' folders.

    Args:
        disk: where they are looked for. Where it fails there are none, or fewer: it need not be there.
        node: this worker.
        newest: the newest checkpoint in storage; of older steps nobody needs anything.

    Attributes:
        unusable: why it cannot be used; None where it can.
    """

    def __init__(self, disk: WorkerDisk, node: TierWorker, newest: StateVersion) -> None:
        self._refused = node.tell_refused
        self._copies: defaultdict[PartOnDisk, list[DiskCopy]] = defaultdict(list)
        self._whole: set[PartOnDisk] = set()
        self.unusable: str | None = None
        try:
            for copy in disk.found(self._refused):
                part = copy.word.part
                if copy.age.step > newest.step:
                    offer = PartOnDisk(node.index, copy.age, copy.manifest.reason, part.node, part.of)
                    self._copies[offer].append(copy)
        except (ElasticError, OSError) as error:
            log.warning("this machine's disk cannot be read, and is done without: %s", error)
            self.unusable = str(error)

    @property
    def offers(self) -> tuple[PartOnDisk, ...]:
        """What this worker can offer."""
        return tuple(offer for offer, copies in self._copies.items() if copies)

    def has_whole(self, offer: PartOnDisk) -> bool:
        """Whether there is one that is what was written. Others, before it, are not offered again."""
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
        """The one that was found to be whole."""
        return self._copies[offer][0]


def _as_ours(node: TierWorker, members: Members, old: Manifest, data: str) -> Manifest:
    """What the manifest of a part is to be, in this attempt's name."""
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
    """Write parts of a state to storage; returns what has kept it from that."""
    try:
        for copy, ours in parts:
            here = Path(copy.folder.uri)
            for file, target in zip(copy.manifest.files, ours.files, strict=True):
                node.store.upload(target.key, here / file.key)
                together.goes_on()
            for account in copy.word.accounts:
                node.store.put(account.key, (here / account.key).read_bytes())
            with contextlib.suppress(
                checkpoints.CheckpointDamaged
            ):  # of what has its name: `_is_stored` tells of it
                tell(node.store, replace(copy.word.part, manifest=ours))
    except Superseded as error:
        node.stop()
        return str(error)
    except (ElasticError, OSError) as error:
        return f"node-{node.index}: {error}"
    return None


class _Together:
    """The agents of a generation, who tell each other."""

    def __init__(self, node: TierWorker, members: Members, store: TCPStore) -> None:
        self._node, self._members, self._store = node, members, store
        self._seconds = node.record.spec.health.start_seconds
        self._give_up, self._done = time.monotonic() + self._seconds, 0

    def say(self, what: str, word: object) -> None:
        self._store.set(f"disk/{what}", json.dumps(encode(word)))

    def hear(self, what: str, kind: type[T]) -> T:
        """Raises _Cut where the worker is to end, or this generation has."""
        while not self._store.check([f"disk/{what}"]):
            if self._node.stop_at is not None or self._node.files.closed or self._node.superseded():
                raise _Cut
            if time.monotonic() > self._give_up and not self._renewed():
                raise NotRecovered(
                    f"what workers have on their disks: `{what}` was not said, and nothing was "
                    f"read or written, within {self._seconds:.0f} s"
                )
            time.sleep(_POLL_SECONDS)
        return decode(kind, json.loads(self._store.get(f"disk/{what}")))

    def goes_on(self) -> None:
        """Something of what others wait for is done: they are to have patience."""
        self._store.add("disk/done", 1)

    def _renewed(self) -> bool:
        """Whether anybody has done anything since this was asked last; then there is as much time again."""
        before, self._done = self._done, self._store.add("disk/done", 0)
        self._give_up = time.monotonic() + self._seconds
        return self._done > before

    def gather(self, what: str, word: T) -> list[T]:
        """What each of them says, in the order of the workers. Raises as `hear` does."""
        self.say(f"{what}/{self._node.index}", word)
        return self.hear_all(what, type(word))

    def hear_all(self, what: str, kind: type[T]) -> list[T]:
        """What each of them has said, in the order of the workers. Raises as `hear` does."""
        return [self.hear(f"{what}/{index}", kind) for index in self._members.nodes]
