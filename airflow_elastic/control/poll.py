"""Poll the store for what other processes have written under the run's URI: events, requests, progress, checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_elastic.adapters.records import checkpoint_retention
from airflow_elastic.adapters.records.reports import read_progress
from airflow_elastic.core.state import Phase
from airflow_elastic.spec import events as ev

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_elastic.adapters.records.journal import Journal
    from airflow_elastic.adapters.records.mailbox import Mailbox, Request
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.status import Progress


class Polled(NamedTuple):
    """What one poll has read. With events there is nothing else, because events may change what to read."""

    events: Sequence[Event]
    requests: Sequence[Request] = ()
    progress: Progress | None = None
    steps: Sequence[int] = ()


def poll(store: Store, journal: Journal, seq: int, mailbox: Mailbox, state: RunState) -> Polled:
    """Read them all in one call: handing over to a thread several times would cost most of the time.

    Args:
        store: where the run is stored.
        journal: read from `seq` on.
        seq: number of the first unknown event.
        mailbox: of the run.
        state: the known state. While an attempt is live, its report and its checkpoints are read too.
    """
    events = journal.read(seq)
    if events:
        return Polled(events)
    requests = mailbox.read()
    if state.attempt.phase is not Phase.LIVE:
        return Polled((), requests)
    progress = read_progress(store, state.attempt.number)
    return Polled((), requests, progress, new_checkpoints(store, state))


def new_checkpoints(store: Store, state: RunState) -> Sequence[int]:
    """The steps of the run's own checkpoints after the newest known one."""
    return checkpoint_retention.own_steps(store, state.checkpoint.step if state.checkpoint else -1)


def events_of(request: Request, at: float) -> Iterator[Event]:
    """A request as events of the journal; none for a kind that this release does not know."""
    if request.kind == "scale" and request.workers is not None:
        yield ev.ScaleRequested(at, request.id, request.workers, request.by)
    elif request.kind == "save":
        yield ev.SaveRequested(at, request.id, request.by)
    elif request.kind == "stop":
        yield ev.StopRequested(at, request.id, request.by, request.owner)
    elif request.kind == "resume" and request.step is not None:
        yield ev.ResumeRequested(at, request.id, request.step, request.by)
    elif request.kind in ("exclude", "include") and request.machine:
        yield ev.MachineExcluded(at, request.id, request.machine, request.by, request.kind == "exclude")
    elif request.kind == "failed" and request.ranks is not None:
        yield ev.RanksFailed(at, request.ranks.attempt, request.ranks.worker, request.ranks.step)
    elif request.checkpoint is not None:
        what = request.checkpoint
        if request.kind == "unsaved":
            yield ev.SaveFailed(at, what.attempt, what.step, request.by, what.reason)
        elif request.kind == "unpruned":
            yield ev.PruneRefused(at, what.attempt, what.step, request.by, what.reason)
        elif request.kind == "refused":
            yield ev.CopyRefused(at, what.attempt, what.step, request.by, what.reason, what.newest)
        elif request.kind == "damaged" and what.newest is not None:
            yield ev.CheckpointQuarantined(at, what.attempt, what.step, what.newest, what.reason)
