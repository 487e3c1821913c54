"""Small documents between controller and agents: orders down, progress up. A fence stops agents of earlier attempts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.stacks import RankStack
from airflow_elastic.spec.status import Progress, Wait

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Orders:
    """The controller's orders to an attempt's agents.

    Attributes:
        save: names the newest request to save.
        failed: the attempt has failed: do not wait for its ranks, and write what they have staged.
        stacks: names the newest request for stacks.
    """

    save: str | None = None
    failed: bool | None = None
    stacks: str | None = None


@dataclass(frozen=True, slots=True)
class Stacks:
    """The stacks of a worker's ranks."""

    ranks: tuple[RankStack, ...] = ()


@dataclass(frozen=True, slots=True)
class ColdStart:
    """The ranks of this run start in new processes, because a fork may have made this one fail; or all, by a hang."""

    at: float
    attempt: int
    rank: int | None = None


def write_cold_start(store: Store, cold: ColdStart) -> None:
    """Decide for good that ranks of this run start in new processes."""
    store.create(layout.COLD_START, json.dumps(encode(cold)).encode())


def read_cold_start(store: Store) -> ColdStart | None:
    """Why ranks of this run start in new processes; None if they need not."""
    return _read(store, layout.COLD_START, ColdStart)


def write_progress(store: Store, progress: Progress) -> None:
    """Replace the attempt's report. It may be lost with the machine's power, because the next one has everything."""
    store.put(layout.report(progress.attempt), json.dumps(encode(progress)).encode(), durable=False)


def read_progress(store: Store, attempt: int) -> Progress | None:
    """The attempt's newest report; None before the first, or where it cannot be read."""
    return _read(store, layout.report(attempt), Progress)


def write_orders(store: Store, attempt: int, orders: Orders) -> None:
    """Replace the orders to an attempt's agents."""
    store.put(layout.orders(attempt), json.dumps(encode(orders)).encode())


def read_orders(store: Store, attempt: int) -> Orders:
    """The newest orders; empty ones where there are none."""
    return _read(store, layout.orders(attempt), Orders) or Orders()


def order_stacks(store: Store, attempt: int, request: str) -> None:
    """Ask an attempt's agents for the stacks of their ranks. Other orders stay."""
    write_orders(store, attempt, replace(read_orders(store, attempt), stacks=request))


def write_stacks(store: Store, attempt: int, request: str, worker: str, told: Sequence[RankStack]) -> None:
    """Write a worker's answer."""
    data = json.dumps(encode(Stacks(tuple(told)))).encode()
    store.put(f"{layout.stacks(attempt, request)}{worker}.json", data, durable=False)


def read_stacks(store: Store, attempt: int, request: str) -> list[tuple[RankStack, ...]]:
    """The answers so far, one of each worker."""
    found = (_read(store, entry.key, Stacks) for entry in store.list(layout.stacks(attempt, request)))
    return [one.ranks for one in found if one is not None]


def write_status(store: Store, document: Mapping[str, Any]) -> None:
    """Replace the status document. If it is lost or old after a loss of power, the journal still has everything."""
    store.put(layout.STATUS, json.dumps(document, indent=1).encode(), durable=False)


def read_wait(store: Store, attempt: int, *, since: float = 0.0) -> Wait | None:
    """What workers of an attempt wait for, by the controller's status document; None if unknown.

    Only a controller has this from the engine, and it does not journal it, so there is no other source.

    Args:
        store: where the run is stored.
        attempt: number of the attempt.
        since: epoch seconds; an older document does not count.
    """
    return read_seen(store, attempt, since=since).wait


class Seen(NamedTuple):
    """What a controller alone sees of an attempt, and does not journal; all empty if unknown.

    Attributes:
        wait: what workers wait for.
        placement: its workers, as its engine sees them.
        slow: ranks that hold all others up.
    """

    wait: Wait | None = None
    placement: Sequence[dict[str, Any]] = ()
    slow: tuple[int, ...] = ()


def read_seen(store: Store, attempt: int, *, since: float = 0.0) -> Seen:
    """The same, and what else the status document alone has."""
    return parse_seen(store.get(layout.STATUS), attempt, since=since)


def parse_seen(data: bytes | None, attempt: int, *, since: float = 0.0) -> Seen:
    """The same, from the bytes of the status document."""
    try:
        written = json.loads(data or b"null")
        if written is None or written["attempts"][-1]["number"] != attempt or written["at"] < since:
            return Seen()
        waiting = written["waiting"]
        placement = [one for one in written.get("placement", ()) if isinstance(one, dict)]
        slow = tuple(one for one in written.get("stragglers", ()) if isinstance(one, int))
        return Seen(None if waiting is None else decode(Wait, waiting), placement, slow)
    except (ValueError, LookupError, TypeError, SpecError, RecursionError):  # of another release, or damaged
        return Seen()


def raise_fence(store: Store, attempt: int) -> None:
    """Record for good that the attempt was begun: earlier ones may not commit any more."""
    store.create(layout.fence(attempt), b"")


def newest_fence(store: Store) -> int:
    """The newest attempt that was begun; 0 where none was."""
    return max((int(entry.key.removeprefix(layout.FENCES)) for entry in store.list(layout.FENCES)), default=0)


def _read(store: Store, key: str, kind: type[T]) -> T | None:
    data = store.get(key)
    try:
        return None if data is None else decode(kind, json.loads(data))
    except (ValueError, SpecError):  # written by another release: no order is better than a wrong one
        return None
