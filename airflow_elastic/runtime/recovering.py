"""What agents find on their machines' disks, that storage does not have: all of them together make a checkpoint of it.

Before ranks start. Each agent says what it has found, the lead says what of that is written by whom, and nobody goes on
before it is: from there on it is a checkpoint like any other.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from airflow_elastic.adapters import checkpoints
from airflow_elastic.adapters.parts import Part, Superseded, tell
from airflow_elastic.core.offers import Offer, choose
from airflow_elastic.runtime.disk import mapped
from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import ElasticError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

    from airflow_elastic.adapters.folder import FolderStore
    from airflow_elastic.adapters.jobfiles import Members
    from airflow_elastic.runtime.disk import Disk
    from airflow_elastic.runtime.node import Node

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.005

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Found:
    """What an agent has found: the newest step in storage, the folder of that checkpoint's data, and what it offers."""

    newest: int
    data: str
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Who is to write what, and what may stay on disks beside that."""

    offers: tuple[Offer, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Done:
    """What kept an agent from writing its share; None where nothing has."""

    trouble: str | None = None


def recover(node: Node, disk: Disk, members: Members, store: TCPStore) -> None:
    """Have the newest state that all workers together have on their disks written to storage, where it is newer.

    Where that cannot be, the run goes on from storage. Returns early where the generation's end has come meanwhile.

    Args:
        node: this worker.
        disk: its own.
        members: of the generation that is about to begin.
        store: of their meeting.
    """
    together = _Together(node, members, store)
    mine: dict[tuple[str, int], tuple[FolderStore, Part]] = {}
    newest, kept = _newest(node)
    for found, part in disk.found(newest):
        mine.setdefault((part.manifest.data, part.node), (found, part))
    offers = tuple(
        Offer(node.index, part.manifest.step, data, part.manifest.reason, number, part.of)
        for (data, number), (_, part) in mine.items()
    )
    everybody = together.gather("found", _Found(newest, kept, offers))
    if everybody is None:
        return
    if node.index == members.nodes[0]:
        newest, kept = max((one.newest, one.data) for one in everybody)
        chosen = choose((offer for one in everybody for offer in one.offers), newest)
        together.say("chosen", _Chosen(chosen, (kept,)))
    plan = together.hear("chosen", _Chosen)
    if plan is None:
        return
    here = [mine[offer.data, offer.part] for offer in plan.offers if offer.by == node.index]
    done = together.gather("written", _Done(_write(node, members, here)))
    if done is None:
        return
    if troubles := [one.trouble for one in done if one.trouble]:
        log.warning(
            "what workers have on their disks of step %d is not used: %s", plan.offers[0].step, troubles[0]
        )
        return
    kept_here = list(plan.kept)
    if plan.offers:
        step = plan.offers[0].step
        data = layout.checkpoint_data(step, node.attempt, members.generation)
        kept_here.append(data)
        log.info("step %d, which workers had on their disks, is in storage now", step)
        for found, part in here:
            disk.settle(found, part.manifest.data, data)
        together.gather("settled", _Done())  # others may have what is theirs in a folder of this machine
    disk.tidy(kept_here)
    together.gather("tidy", _Done())  # nobody writes before


def _newest(node: Node) -> tuple[int, str]:
    """Step of the newest checkpoint in storage, and the folder of its data."""
    steps = checkpoints.steps(node.store)
    if not steps:
        return -1, ""
    try:
        return steps[-1], checkpoints.read(node.store, steps[-1]).data
    except checkpoints.CheckpointDamaged:
        return steps[-1], ""


def _write(node: Node, members: Members, parts: Iterable[tuple[FolderStore, Part]]) -> str | None:
    """Write parts of a state to storage, as this attempt's own; returns what has kept it from that."""
    try:
        for found, part in parts:
            old = part.manifest
            data, files = layout.checkpoint_data(old.step, node.attempt, members.generation), []
            for file in old.files:
                moved = replace(file, key=data + file.key.removeprefix(old.data))
                with mapped(Path(found.uri, file.key)) as memory:
                    node.store.write(moved.key, memory)
                files.append(moved)
            for account in found.list(layout.SAMPLES):
                if account.key.rpartition("/")[2].startswith(f"{old.step:012d}-"):
                    node.store.put(account.key, found.get(account.key) or b"")
            manifest = replace(
                old,
                attempt=node.attempt,
                generation=members.generation,
                data=data,
                files=tuple(files),
                created_at=time.time(),
            )
            tell(node.store, replace(part, manifest=manifest))
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

    def say(self, what: str, word: object) -> None:
        self._store.set(f"disk/{what}", json.dumps(encode(word)))

    def hear(self, what: str, kind: type[T]) -> T | None:
        """None where the worker is to end, or this generation has."""
        while not self._store.check([f"disk/{what}"]):
            if self._node.stop_at is not None or self._node.superseded():
                return None
            time.sleep(_POLL_SECONDS)
        return decode(kind, json.loads(self._store.get(f"disk/{what}")))

    def gather(self, what: str, word: T) -> list[T] | None:
        """What each of them says, in the order of the workers; None as from `hear`."""
        self.say(f"{what}/{self._node.index}", word)
        words = [self.hear(f"{what}/{index}", type(word)) for index in self._members.nodes]
        return None if None in words else [one for one in words if one is not None]
