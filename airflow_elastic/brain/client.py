"""The Brain, as a controller asks it. It never raises: what it does not know, or cannot reach, is None or ().

The database is opened with the first question. Questions block until it answers, so an event loop asks in a thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_elastic.core.brain.evidence import of_kind, speeds_of
from airflow_elastic.core.brain.kind import accelerators
from airflow_elastic.core.brain.learnt import with_learnt
from airflow_elastic.core.brain.proposals import proposals
from airflow_elastic.spec.scaling.form import sizes

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.brain.database import Database
    from airflow_elastic.core.brain.facts import Facts
    from airflow_elastic.spec.brain.proposal import Proposal
    from airflow_elastic.spec.run import RunSpec
    from airflow_elastic.spec.scaling.observation import Share, Speed

log = logging.getLogger(__name__)

T = TypeVar("T")

#: After a failure the database is left alone for so many seconds.
PAUSE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Ask:
    """What a run asks for of a capacity that it shares with others.

    Attributes:
        pool: the name of the capacity: the same for all runs that take from it, such as a queue.
        workers: how many it has; 0 before its first.
        free: for how many further ones there is room, beside all that runs; None if the engine does not say.
        priority: higher ones come first.
        speeds: what it has measured so far.
    """

    pool: str
    workers: int
    free: int | None
    priority: int = 0
    speeds: tuple[Speed, ...] = ()


class Memory:
    """What past runs say, and the share of a run. Safe for any number of threads.

    Args:
        url: of the database. Default: from the environment.
        clock: epoch seconds.
    """

    def __init__(self, url: str | None = None, clock: Callable[[], float] = time.time) -> None:
        self._url, self._clock = url, clock
        self._lock = threading.Lock()
        self._database: Database | None = None
        self._silent_until = float("-inf")
        self._warned = False

    def learnt(self, spec: RunSpec) -> tuple[Speed, ...]:
        """Step times of earlier runs that are alike; () with mode `manual`, and where nothing is known."""
        if spec.brain not in ("single", "cluster"):
            return ()

        return speeds_of(spec, of_kind(spec, self.past(spec)))[0]

    def past(self, spec: RunSpec) -> tuple[Facts, ...]:
        """The facts about runs like this one, oldest first, whatever its mode is."""

        def found(database: Database) -> tuple[Facts, ...]:
            from airflow_elastic.brain import memory

            return memory.of_kind(database, spec)

        return self._asked(found, ())

    def proposals(self, spec: RunSpec, uri: str | None = None) -> tuple[Proposal, ...]:
        """Values that past runs propose for a run, whatever its mode is. With its URI, they are kept for it."""

        def found(database: Database) -> tuple[Proposal, ...]:
            from airflow_elastic.brain import memory

            made = proposals(spec, memory.of_kind(database, spec))
            if uri is not None:
                memory.keep_proposals(database, uri, made, self._clock())
            return made

        return self._asked(found, ())

    def begin(self, spec: RunSpec) -> tuple[RunSpec, tuple[Proposal, ...]]:
        """The specification that a new run starts with, and the proposals in it. It changes only in mode `cluster`."""
        return with_learnt(spec, self.proposals(spec)) if spec.brain == "cluster" else (spec, ())

    def share(self, uri: str, spec: RunSpec, ask: Ask) -> Share | None:
        """The share of a run in a capacity; None if it has none, as in all modes but `cluster`."""
        if spec.brain != "cluster":
            return None

        def found(database: Database) -> Share | None:
            from airflow_elastic.brain import allocation

            now, workers = self._clock(), spec.workers
            every = tuple(range(workers.at_least, workers.at_most + 1, workers.node_unit))
            possible = sizes(spec.scaling_policy, workers) if spec.scaling_policy is not None else every
            entry = allocation.Entry(
                possible, ask.workers, now, now, ask.priority, accelerators(spec), ask.speeds, ask.free
            )
            return allocation.ask(database, ask.pool, uri, entry)

        return self._asked(found, None)

    def leave(self, uri: str, pool: str) -> None:
        """Say that a run has ended: others get its share."""

        def gone(database: Database) -> None:
            from airflow_elastic.brain import allocation

            allocation.leave(database, pool, [uri], self._clock())

        self._asked(gone, None)

    def remember(self, store: Store) -> None:
        """Keep what there is to know of a run, such as at its end."""

        def kept(database: Database) -> None:
            from airflow_elastic.brain.memory import remember
            from airflow_elastic.brain.read import facts_of

            now = self._clock()
            remember(database, facts_of(store, now), now)

        self._asked(kept, None)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            database, self._database = self._database, None
        if database is not None:
            database.close()

    def _asked(self, question: Callable[[Database], T], otherwise: T) -> T:
        if self._clock() < self._silent_until:
            return otherwise
        try:
            answer = question(self._opened())
        except Exception as error:  # whatever it is, a run goes on without its memory
            self._silent_until = self._clock() + PAUSE_SECONDS
            if not self._warned:
                self._warned = True
                log.warning("the memory of past runs is not used: %s", _why(error))
            return otherwise
        self._warned = False
        return answer

    def _opened(self) -> Database:
        with self._lock:
            if self._database is None:
                from airflow_elastic.brain.database import Database

                self._database = Database(self._url)
            return self._database


def _why(error: Exception) -> Any:
    if isinstance(error, ImportError):
        return f"the package {error.name or 'SQLAlchemy'} is missing: pip install 'airflow-elastic[brain]'"
    # Errors of this package have no secrets in their texts. Others may have the URL.
    ours = type(error).__module__.startswith("airflow_elastic.")
    return str(error) if ours else type(error).__name__
