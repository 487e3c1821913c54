"""What agents find on their machines' disks, that storage does not have: all of them together make a checkpoint of it.

Before ranks start. Each agent says what it has found, the lead says what of that is written by whom, and nobody goes on
before it is: from there on it is a checkpoint like any other.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from airflow_elastic.adapters import checkpoints
from airflow_elastic.adapters.parts import Part, Superseded, tell
from airflow_elastic.core.offers import Age, Offer, choose
from airflow_elastic.runtime.disk import age_of, is_whole
from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import ElasticError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

    from airflow_elastic.adapters.folder import FolderStore
    from airflow_elastic.adapters.jobfiles import Members
    from airflow_elastic.runtime.disk import Disk
    from airflow_elastic.runtime.node import Node
    from airflow_elastic.spec.manifest import Manifest

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.005

T = TypeVar("T")


class NotRecovered(ElasticError):
    """Workers have a newer state on their disks than storage has, and it could not be made a checkpoint."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What an agent has found: the newest checkpoint in storage, the folder of its data, and what it offers."""

    newest: Age
    data: str
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Who is to write what, and what may stay on disks beside that."""

    offers: tuple[Offer, ...]
    kept: str


@dataclass(frozen=True, slots=True)
class _Done:
    """What kept an agent from its share; None where nothing has."""

    trouble: str | None = None


def recover(node: Node, members: Members, store: TCPStore) -> bool:
    """Have the newest state that all workers together have on their disks written to storage, where it is newer.

    Args:
        node: this worker.
        members: of the generation that is about to begin.
        store: of their meeting.

    Returns:
        Whether the generation can begin; False where its end, or this worker's, has come meanwhile.

    Raises:
        NotRecovered: there is such a state, and it could not be written; or a worker has not answered for as long as a
            start may take. It is still there, for the next attempt.
    """
    disk = node.disk
    if disk is None:
        return True
    together = _Together(node, members, store)
    newest, kept = _newest(node)
    mine = _whole(disk, newest)
    offers = tuple(
        Offer(node.index, age_of(part.manifest), part.manifest.reason, part.node, part.of) for _, part in mine
    )
    everybody = together.gather("found", _Found(newest, kept, offers))
    if everybody is None:
        return False
    if node.index == members.nodes[0]:
        stored = max(everybody, key=lambda one: one.newest)
        now = Age(node.attempt, members.generation)
        whole = choose((offer for one in everybody for offer in one.offers), stored.newest, now)
        together.say("chosen", _Chosen(whole, stored.data))
    chosen = together.hear("chosen", _Chosen)
    if chosen is None:
        return False
    kept_here = [chosen.kept]
    if chosen.offers:
        step = chosen.offers[0].age.step
        data = layout.recovered_data(step, node.attempt, members.generation)
        wanted = {(one.age, one.reason, one.part) for one in chosen.offers if one.by == node.index}
        here = [
            (found, part, _as_ours(node, members, part, data))
            for found, part in mine
            if (age_of(part.manifest), part.manifest.reason, part.node) in wanted
        ]
        log.info("workers have step %d on their disks: %d parts of it are written from here", step, len(here))
        done = together.gather("written", _Done(_write(node, here)))
        if done is None:
            return False
        if troubles := [one.trouble for one in done if one.trouble]:
            raise NotRecovered(
                f"workers have step {step} on their disks, which could not be written to {node.store.uri}: "
                f"{troubles[0]}"
            )
        if _is_stored(node, step, data):
            for found, part, ours in here:
                disk.settle(found, part, ours)
            kept_here.append(data)
        if together.gather("settled", _Done()) is None:  # others may have theirs in a folder of this machine
            return False
    disk.tidy(kept_here)
    return together.gather("tidy", _Done()) is not None  # nobody writes before


def _newest(node: Node) -> tuple[Age, str]:
    """The newest checkpoint in storage that can be read, and the folder of its data."""
    for step in reversed(checkpoints.steps(node.store)):
        try:
            manifest = checkpoints.read(node.store, step)
        except checkpoints.CheckpointDamaged:
            continue
        return age_of(manifest), manifest.data
    return Age(), ""


def _is_stored(node: Node, step: int, data: str) -> bool:
    """Whether it is a checkpoint now. There may be one that nobody can read: then that is what ranks set aside."""
    try:
        return checkpoints.read(node.store, step).data == data
    except checkpoints.CheckpointDamaged as error:
        log.warning("what workers have on their disks of step %d is not used: %s", step, error)
        return False


def _whole(disk: Disk, newest: Age) -> list[tuple[FolderStore, Part]]:
    """The parts on this machine's disk that are newer than storage; none where the disk fails: it need not be there."""
    whole: dict[tuple[Age, str, int], tuple[FolderStore, Part]] = {}
    try:
        for found, part in disk.found():
            which = age_of(part.manifest), part.manifest.reason, part.node
            if part.manifest.step > newest.step and which not in whole and is_whole(found, part.manifest):
                whole[which] = found, part
    except (ElasticError, OSError) as error:
        log.warning("this machine's disk cannot be read, and is done without: %s", error)
    return list(whole.values())


def _as_ours(node: Node, members: Members, part: Part, data: str) -> Manifest:
    """What the manifest of a part is to be, in this attempt's name."""
    old = part.manifest
    files = tuple(replace(file, key=data + file.key.removeprefix(old.data)) for file in old.files)
    ours = replace(old, attempt=node.attempt, generation=members.generation, data=data, files=files)
    return replace(ours, created_at=time.time())


def _write(node: Node, parts: Sequence[tuple[FolderStore, Part, Manifest]]) -> str | None:
    """Write parts of a state to storage; returns what has kept it from that."""
    try:
        for found, part, ours in parts:
            old = part.manifest
            for file, target in zip(old.files, ours.files, strict=True):
                node.store.upload(target.key, Path(found.uri, file.key))
            for account in found.list(layout.accounts(old.attempt, old.generation, old.step)):
                if told := found.get(account.key):
                    node.store.put(account.key, told)
            tell(node.store, replace(part, manifest=ours))
    except Superseded as error:
        node.stop()
        return str(error)
    except (ElasticError, OSError) as error:
        return f"node-{node.index}: {error}"
    return None


class _Together:
    """The agents of a generation, who tell each other."""

    def __init__(self, node: Node, members: Members, store: TCPStore) -> None:
        self._node, self._members, self._store = node, members, store
        self._seconds = node.record.spec.health.start_seconds
        self._give_up = time.monotonic() + self._seconds

    def say(self, what: str, word: object) -> None:
        self._store.set(f"disk/{what}", json.dumps(encode(word)))

    def hear(self, what: str, kind: type[T]) -> T | None:
        """None where the worker is to end, or this generation has."""
        while not self._store.check([f"disk/{what}"]):
            if self._node.stop_at is not None or self._node.files.closed or self._node.superseded():
                return None
            if time.monotonic() > self._give_up:
                raise NotRecovered(
                    f"what workers have on their disks: `{what}` was not said within {self._seconds:.0f} s"
                )
            time.sleep(_POLL_SECONDS)
        return decode(kind, json.loads(self._store.get(f"disk/{what}")))

    def gather(self, what: str, word: T) -> list[T] | None:
        """What each of them says, in the order of the workers; None as from `hear`."""
        self.say(f"{what}/{self._node.index}", word)
        words = [self.hear(f"{what}/{index}", type(word)) for index in self._members.nodes]
        return None if None in words else [one for one in words if one is not None]
