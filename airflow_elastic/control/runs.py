"""Runs by their URI: create one, find one, send a request to one. Only the first needs an engine."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.adapters.records.reports import read_progress, read_seen
from airflow_elastic.adapters.storage.empty_place import foreign_object
from airflow_elastic.adapters.storage.open import open_store, probe
from airflow_elastic.control.models.start_from import hold, resolve
from airflow_elastic.control.scaling.check import refuse_policy, refuse_standby
from airflow_elastic.control.scaling.past_runs import as_started, proposed
from airflow_elastic.core.machine import replay
from airflow_elastic.core.status_document import document
from airflow_elastic.engines.api import Engine, Job, RemoteEngine, find_engine
from airflow_elastic.launchers import find_launcher
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.comparison import differences, is_same, only_workers_differ
from airflow_elastic.spec.errors import InvalidInput, Problem, RunDiffers, RunMissing, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.models.start import Origin
    from airflow_elastic.spec.run import RunSpec
    from airflow_elastic.spec.status import Progress

#: A status document older than this says nothing about waiting workers: twice the controller's longest pause.
FRESH_SECONDS = 60.0


class Run:
    """A run that exists, as read from its journal. All methods only read, except requests."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def state(self) -> RunState:
        """Read the journal. Raises RunMissing where there is no run."""
        state = replay(Journal(self.store).read())
        if state is None:
            raise RunMissing(
                f"{self.store.uri} holds no run: check the URI, or start a run there with `airflow-elastic run --uri`"
            )
        return state

    def progress(self, state: RunState) -> Progress | None:
        """The newest report of the current attempt."""
        return read_progress(self.store, state.attempt.number) or state.attempt.progress

    def status(self) -> dict[str, object]:
        """The status document, made now. What workers wait for comes from the controller's last status document."""
        state, now = self.state, time.time()
        seen = read_seen(self.store, state.attempt.number, since=now - FRESH_SECONDS)
        return document(self.store.uri, state, self.progress(state), now, *(() if state.ended else seen))

    def ask_scale(self, workers: int, *, by: str) -> None:
        """Ask for another number of workers. Raises InvalidInput where the run does not allow it."""
        state = self._running("scaled")
        if not state.spec.workers.permits(workers):
            raise SpecError(Problem("workers", workers, state.spec.workers.allowed()))
        Mailbox(self.store).post("scale", by=by, workers=workers)

    def ask_stop(self, *, by: str, owner: str | None = None) -> None:
        """Ask the run to save and end; with `owner`, the request counts only while this is the run's owner."""
        self._running("stopped")
        Mailbox(self.store).post("stop", by=by, owner=owner)

    def ask_save(self, *, by: str) -> None:
        """Ask for a checkpoint now."""
        self._running("saved")
        Mailbox(self.store).post("save", by=by)

    def ask_resume(self, step: int, *, by: str) -> None:
        """Ask the run to go on from the checkpoint of this step, as if it had never gone further.

        The checkpoint is pinned. Newer ones are set aside when the next attempt begins. A failed or stopped run goes on
        when somebody carries it on.

        Raises:
            InvalidInput: the run has succeeded, or there is no such checkpoint.
        """
        state = self.state
        if state.outcome == "succeeded":
            raise InvalidInput(
                f"{self.store.uri} has succeeded, and does not go on; begin a new run with a copy of its `checkpoints/`"
            )
        try:
            self.pin(step, by=by)
        except CheckpointDamaged as error:
            there = ", ".join(map(str, checkpoints.steps(self.store))) or "none"
            raise InvalidInput(f"{error}; there are: {there}") from error
        Mailbox(self.store).post("resume", by=by, step=step)

    def ask_exclude(self, machine: str, *, by: str, exclude: bool = True) -> None:
        """Ask for no worker on this machine from the next attempt on; without `exclude`, allow it again.

        Raises:
            InvalidInput: the run has succeeded, its engine has only one machine, or no worker has been on that one.
        """
        state = self._running("changed")
        if not find_engine(state.spec.engine).capabilities.exclude:
            raise InvalidInput(f"engine {state.spec.engine!r} has no other machine, so none can be excluded")
        known = {name for attempt in state.attempts for name in attempt.machines} | state.excluded
        placement = read_seen(self.store, state.attempt.number).placement
        known |= {worker["machine"] for worker in placement if worker.get("machine")}
        if machine not in (known if exclude else state.excluded):
            there = ", ".join(sorted(known if exclude else state.excluded)) or "none is known yet"
            raise InvalidInput(f"machine: given {machine!r}; allowed: {there}")
        Mailbox(self.store).post("exclude" if exclude else "include", by=by, machine=machine)

    def pin(self, step: int, *, by: str) -> None:
        """Protect the checkpoint of a step from removal. Raises CheckpointDamaged if there is none."""
        checkpoint_retention.pin(self.store, step, by=by)

    def _running(self, verb: str) -> RunState:
        state = self.state
        if state.ended:
            reason = state.reason or ""
            why = reason if reason.startswith(f"{state.outcome} ") else f"{state.outcome}: {reason}"
            said = f"{self.store.uri} has ended ({why}): it cannot be {verb} any more"
            if state.outcome != "succeeded":
                said += f"; `airflow-elastic run --uri {shlex.quote(self.store.uri)}` carries it on"
            raise InvalidInput(said)
        return state


def open_run(uri: str | Store) -> Run:
    """The run at a URI. Raises RunMissing where there is none."""
    run = Run(open_store(uri) if isinstance(uri, str) else uri)
    _ = run.state
    return run


def start_run(
    store: Store,
    spec: RunSpec,
    *,
    owner: str | None = None,
    task: str | None = None,
    engine: Engine | None = None,
    opens: Callable[[str], Store] = open_store,
) -> Run:
    """Create a run, or find it if it is already there. A failed or stopped one is reopened.

    The run may have begun in another folder, as with a new version of a DAG bundle. Its next attempt then begins in the
    new folder. Everything is checked before anything is created.

    Args:
        store: where to store the run.
        spec: its specification.
        owner: whose requests to stop count from now on.
        task: the task instance of the owner, if it is one.
        engine: the engine for the run, if the caller has one already.
        opens: opens the place that it starts from.

    Raises:
        InvalidInput: the place holds something that is no run; its files would be mixed with those of the run. Or there
            is nothing to start from, or workers cannot read it.
        SpecError: engine or launcher are unknown, or cannot carry the specification out.
        RunDiffers: another run is there; the text has the differences.
        StoreUnfit: the storage cannot carry a journal.
    """
    launcher = find_launcher(spec.launcher)
    launcher.refuse(spec)
    engine = engine or find_engine(spec.engine)
    engine.check(spec)
    refuse_standby(spec, engine, launcher)
    journal = Journal(store)
    events = journal.read()
    if not events:
        refuse_policy(spec, engine, time.time())
        _refuse_unreachable(engine, store, spec)
        _refuse_occupied(store, journal, spec)
        origin = resolve(spec.start_from, opens) if spec.start_from is not None else None
        if origin is not None:
            _refuse_hidden(engine, origin, spec)
        probe(store)
        if origin is not None:
            hold(origin, opens, by=store.uri)
        proposals = proposed(spec, store.uri)
        spec = as_started(spec, proposals)
        in_place = launcher.elastic and engine.capabilities.scale_in_place
        adopts = tuple(sorted({one.run for one in checkpoints.readable(store)} - {""})) or None
        created = ev.RunCreated(time.time(), spec, in_place, owner, adopts, task, origin, proposals)
        if journal.append(0, created):
            return Run(store)
        events = journal.read()
    _carry_on(store, journal, spec, owner, task)
    return Run(store)


def _refuse_unreachable(engine: Engine, store: Store, spec: RunSpec) -> None:
    if isinstance(engine, RemoteEngine):
        why = engine.storage_problem(Job(store.uri, spec, 1, spec.workers.count))
        if why is not None:
            raise InvalidInput(why)


def _refuse_hidden(engine: Engine, origin: Origin, spec: RunSpec) -> None:
    """Refuse to start from a place that workers do not see."""
    place = origin.file or origin.run or ""
    if isinstance(engine, RemoteEngine) and engine.storage_problem(Job(place, spec, 1, spec.workers.count)):
        raise InvalidInput(
            f"start_from: {origin.words} is in the folder {place}, but workers on a cluster do not see it. Use "
            "s3://bucket/prefix, or mount a shared volume at the same path (engine_options.volumes)"
        )


def _refuse_occupied(store: Store, journal: Journal, spec: RunSpec) -> None:
    """Refuse a place that holds something else, whose `local/` or `status.json` would be overwritten."""
    found = foreign_object(store)
    # The files may belong to another controller that has just begun this run.
    if found is not None and not journal.read():
        raise InvalidInput(
            f"{store.uri} is not empty and holds no run (it has {found!r}): give an empty or new folder, "
            f"e.g. {store.uri}/runs/{spec.name}"
        )


def _carry_on(store: Store, journal: Journal, spec: RunSpec, owner: str | None, task: str | None) -> None:
    """Take over the run that is there."""
    while True:
        events = journal.read()
        state = replay(events)
        if state is None:
            raise RunMissing(f"{store.uri} held a run a moment ago: somebody is removing it")
        spec = as_started(spec, state.proposals)
        if not is_same(state.spec, spec):
            lines = "; ".join(differences(state.spec, spec))
            raise RunDiffers(
                f"{store.uri} holds another run ({lines})", workers=only_workers_differ(state.spec, spec)
            )
        now = time.time()
        event: ev.Event
        if state.outcome != "succeeded" and state.spec != spec:
            event = ev.RunMoved(now, spec)
        elif state.ended and state.outcome != "succeeded":
            event = ev.RunReopened(now, owner, task)
        elif owner is not None and owner != state.owner and not state.ended:
            event = ev.OwnerChanged(now, owner, task)
        else:
            return
        if journal.append(len(events), event) and not isinstance(event, ev.RunMoved):
            return
