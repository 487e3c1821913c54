"""The part of a session for passes that must leave no trace: learning-rate finders, warm-ups, trials."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from airflow_elastic.runtime.checkpoint.save import random_state
from airflow_elastic.runtime.checkpoint.save.save import ORDER
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.collectives.local_sgd import LocalSGD
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.data.share import DataShare
from airflow_elastic.runtime.model_changes.rollback import Rollback
from airflow_elastic.runtime.session.phases import PhaseProgress
from airflow_elastic.runtime.session.reporting.heartbeat import Heartbeat
from airflow_elastic.runtime.session.resume import Resume
from airflow_elastic.runtime.session.save_schedule import SaveSchedule
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.errors import InvalidInput

log = logging.getLogger(__name__)


class Scratch:
    """Methods with which a script marks passes that are not part of its training."""

    _averaging: LocalSGD | None
    _progress: PhaseProgress
    _feed: DataShare
    _resume: Resume
    _objects: Stateful | None
    _ranks: Collectives
    _saves: SaveSchedule
    _heartbeat: Heartbeat
    _aside: Rollback | None = None

    def _join_saver(self) -> None:
        """Wait until a copy that runs beside training is done, so that the objects may change."""
        raise NotImplementedError

    @property
    def in_scratch(self) -> bool:
        """Whether the script is in a pass that leaves no trace."""
        return self._aside is not None

    @contextlib.contextmanager
    def scratch(self, *objects: Any) -> Iterator[None]:
        """A pass that must leave no trace: `with run.scratch():`, around a learning-rate finder or a warm-up.

        Within, `loader` yields data from its beginning, `step` does not count, and nothing is saved. At the end, the
        objects of `restore` and those given here get their former state back, and so do random generators. To keep what
        the pass has found, use `run.note` or `phase.record`.

        All ranks call this together. If they must end meanwhile, they first put everything back, and save. Other saves
        wait for the first step after the pass.

        Args:
            objects: models, optimizers and schedules to put back, if `restore` was not given them.

        Raises:
            InvalidInput: an object has no state, a layer has no shape yet, or the script is in such a pass already.
            RuntimeError: an object could not be put back. All others are.
        """
        if self._aside is not None:
            raise InvalidInput("run.scratch: called within run.scratch; allowed: one after the other")
        self._join_saver()
        with self._heartbeat.measuring(), _as_before(self, self._inert(objects)):
            yield

    def _looked_at(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches, and report at each one that the rank does not hang: `step` does not do so here."""
        for one in batches:
            self._heartbeat.works()
            yield one

    def _inert(self, objects: tuple[Any, ...]) -> dict[str, Any]:
        """The parts that replace the session's own during the pass, by attribute."""
        kept = Rollback((*_all_of(self._objects), *objects))
        progress, feed = _NoPhases(), DataShare(self._ranks, None, lambda steps: None)
        resume, heartbeat = _NoResume(kept, progress, feed), _BareHeartbeat(self._heartbeat)
        nothing: dict[str, Any] = dict.fromkeys(
            ("_restorer", "_saver", "_accountant", "_objects", "_averaging", "_loss")
        )
        return nothing | {
            "_aside": kept,
            "_progress": progress,
            "_feed": feed,
            "_resume": resume,
            "_heartbeat": heartbeat,
            "_saves": _NoSaves(self, heartbeat),
            "_metrics": {},
            "_trained": set(),
        }


@contextlib.contextmanager
def _as_before(session: Scratch, meanwhile: dict[str, Any]) -> Iterator[None]:
    """Replace parts of a session meanwhile. At the end put them back, and the state of all kept objects."""
    generators, kept = random_state.capture(), meanwhile["_aside"]
    former = {name: getattr(session, name) for name in meanwhile}

    def leave() -> None:
        with contextlib.ExitStack() as each:  # runs all of them, the last one first, even if one fails
            each.callback(random_state.restore, generators)
            each.callback(kept.put_back)
            each.callback(vars(session).update, former)
            if session._averaging is not None:
                session._averaging.end()

    vars(session).update(meanwhile)
    meanwhile["_saves"].leave = leave
    try:
        yield
    except BaseException as error:
        try:
            leave()
        except Exception as another:  # added to the error of the pass, which must not be replaced
            error.add_note(str(another))
            log.error("%s", another)
        raise
    leave()


def _all_of(objects: Stateful | None) -> Iterator[Any]:
    if objects is not None:
        yield objects.model
        yield from objects.optimizers
        yield from (one for name, one in objects.others.items() if name != ORDER)


class _NoPhases(PhaseProgress):
    """Counts steps that belong to no phase of the run."""

    def check_finish(self) -> None:
        raise InvalidInput("run.finish: called within run.scratch; allowed: after the training")


class _NoResume(Resume):
    """Loads no checkpoint. Objects that are restored meanwhile keep their state, and get it back at the end, too."""

    def __init__(self, kept: Rollback, progress: PhaseProgress, feed: DataShare) -> None:
        super().__init__(None, progress, feed)
        self._kept = kept

    def load(self, objects: Stateful) -> Manifest | None:
        self._kept.keep(*_all_of(objects))
        return super().load(objects)

    def replaced(self, objects: Stateful) -> None:
        self._kept.keep(*_all_of(objects))
        super().replaced(objects)


class _NoSaves(SaveSchedule):
    """Saves nothing. If ranks must end, it puts everything back, and then saves.

    Args:
        session: the session of this rank.
        heartbeat: knows whether ranks must end.
    """

    def __init__(self, session: Scratch, heartbeat: Heartbeat) -> None:
        super().__init__(session._ranks, heartbeat, CheckpointPolicy(), lambda reason: False, lambda: None)
        self._former = session._progress, session._saves
        self.leave = _nothing

    def _park(self) -> None:
        self.leave()
        progress, saves = self._former
        saves.park(progress.steps)


class _BareHeartbeat(Heartbeat):
    """Reports only that the rank does not hang.

    Args:
        heartbeat: the reports of the rank.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self.words = heartbeat.words

    @property
    def saves_ordered(self) -> float:
        return 0.0

    def stepped(self, *_: Any) -> None:
        self.works()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        yield

    def expect(self, total_steps: int) -> None: ...

    def enter(self, phases: Any) -> None: ...

    def listen(self, model: Any) -> None: ...

    def restored(self, *_: Any, verified: bool) -> None: ...


def _nothing() -> None:
    """Before the pass begins there is nothing to put back."""
