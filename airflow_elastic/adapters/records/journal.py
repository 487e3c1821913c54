"""The journal: one immutable object per event, created exclusively. It is the truth about a run, and its lock.

Two controllers may be at work, such as two triggerers, or a retry beside its predecessor. Each appends under the next
number, and one of them wins. The other one learns that, reads the new events and goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import SpecError, StoreError
from airflow_elastic.spec.events import Event, RunCreated, event_from_dict, event_to_dict

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.checkpoints.manifest import Manifest

#: Version of an entry's form.
ENTRY_VERSION = 1

#: On a service so many entries are read one after the other, and further ones so many at once.
_ALONE, _AT_ONCE = 4, 8


def newest(store: Store) -> int:
    """Number of the newest entry; -1 where there is none."""
    names = (Path(entry.key).stem for entry in store.list(layout.JOURNAL))
    return max((int(name) for name in names if name.isdigit()), default=-1)


def identity(store: Store) -> str:
    """The identity of this run, which survives copies of its folder; empty if there is no run."""
    return _identity(store.get(layout.journal_entry(0)))


def _identity(first: bytes | None) -> str:
    return hashlib.sha256(first).hexdigest()[:16] if first else ""


def is_ours(store: Store) -> Callable[[Manifest], bool]:
    """Whether a checkpoint belongs to the run at `store`: the run wrote it, or was begun with it.

    Without a readable run every checkpoint belongs to it. So does a checkpoint of releases that did not record the run.
    """
    first = store.get(layout.journal_entry(0))
    try:
        begun = Journal(store).parse(0, first) if first else None
    except StoreError:  # of a newer release
        begun = None
    if not isinstance(begun, RunCreated):
        return lambda _: True
    accepted = {"", _identity(first), *(begun.adopts or ())}
    return lambda manifest: manifest.run in accepted


class Journal:
    """Compare-and-append over a store.

    Args:
        store: where the run is stored.
        writer: names this controller in its entries. It is made unique for every instance. Two controllers never write
            equal bytes, so a store can distinguish a repeated put from a lost race.
    """

    def __init__(self, store: Store, writer: str = "controller") -> None:
        self._store = store
        self._writer = f"{writer}/{uuid.uuid4().hex[:12]}"

    def read(self, start: int = 0) -> list[Event]:
        """All events from number `start` on, in order.

        Raises:
            StoreError: an entry is no event of this version; the run was written by a newer release, or damaged.
        """
        events: list[Event] = []
        far = self._store.local_path(layout.STATUS) is None
        # Most reads find few new entries, and cost one request more than that.
        while len(events) < _ALONE or not far:
            if (data := self._store.get(layout.journal_entry(start + len(events)))) is None:
                return events
            events.append(self.parse(start + len(events), data))
        with ThreadPoolExecutor(_AT_ONCE, "journal") as pool:
            while True:
                seqs = range(start + len(events), start + len(events) + _AT_ONCE)
                for seq, data in zip(
                    seqs, pool.map(self._store.get, map(layout.journal_entry, seqs)), strict=True
                ):
                    if data is None:  # later ones may have been appended meanwhile
                        return events
                    events.append(self.parse(seq, data))

    def append(self, seq: int, event: Event) -> bool:
        """Make `event` entry number `seq`. False: another controller has written that entry; read it and go on."""
        entry = {"version": ENTRY_VERSION, "seq": seq, "writer": self._writer, **event_to_dict(event)}
        return self._store.create(layout.journal_entry(seq), json.dumps(entry, indent=1).encode())

    def parse(self, seq: int, data: bytes) -> Event:
        """The event of an entry. Raises as `read`."""
        try:
            entry = json.loads(data)
            version = entry.pop("version")
            if version != ENTRY_VERSION:
                raise ValueError(f"it has version {version}, this release reads {ENTRY_VERSION}")
            del entry["seq"], entry["writer"]
            return event_from_dict(entry)
        except (ValueError, KeyError, AttributeError, TypeError, SpecError) as error:
            where = f"{self._store.uri}/{layout.journal_entry(seq)}"
            raise StoreError(f"{where} cannot be read as a journal entry: {error}") from error
