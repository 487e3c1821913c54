"""The part of a session that knows of passes that are to leave no trace: learning-rate finders, warm-ups, trials."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from airflow_elastic.runtime.checkpoint.save import random_state
from airflow_elastic.runtime.checkpoint.save.save import ORDER, Stateful
from airflow_elastic.runtime.collectives.local_sgd import LocalSGD
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.data.share import DataShare
from airflow_elastic.runtime.model_changes.rollback import Rollback
from airflow_elastic.runtime.session.heartbeat import Heartbeat
from airflow_elastic.runtime.session.phases import PhaseProgress
from airflow_elastic.runtime.session.resume import Resume
from airflow_elastic.runtime.session.save_schedule import SaveSchedule
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.errors import InvalidInput

log = logging.getLogger(__name__)


class Scratch:
    """What a script says of passes that are no part of its training."""

    _averaging: LocalSGD | None
    _course: PhaseProgress
    _feed: DataShare
    _going_on: Resume
    _objects: Stateful | None
    _ranks: Collectives
    _saves: SaveSchedule
    _voice: Heartbeat
    _aside: Rollback | None = None

    def _join_saver(self) -> None:
        """What is copied beside training is copied then, and may be changed."""
        raise NotImplementedError

    @property
    def in_scratch(self) -> bool:
        """Whether the script is in a pass that leaves no trace."""
        return self._aside is not None

    @contextlib.contextmanager
    def scratch(self, *objects: Any) -> Iterator[None]:
        """A pass that is to leave no trace: `with run.scratch():`, around a learning-rate finder or a warm-up.

        Within, `loader` gives data from its beginning, `step` counts nothing, and nothing is saved. At the end all is
        put back that was restored, and what is given here: weights, optimizers, other objects, generators of random
        numbers. What the pass has found is kept by `run.note`, or `phase.record`.

        All ranks call this together. Where they are asked to end meanwhile, all is put back and saved first; what else
        is to be saved waits for the first step after it.

        Args:
            objects: models, optimizers and schedules to put back, that `restore` was not given.

        Raises:
            InvalidInput: an object has no state, or a layer has no shape yet; or the script is in such a pass.
            RuntimeError: something could not be put back; all else is.
        """
        if self._aside is not None:
            raise InvalidInput("run.scratch: given within run.scratch; allowed: one after the other")
        self._join_saver()
        with self._voice.measuring(), _as_before(self, self._inert(objects)):
            yield

    def _looked_at(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches. Each one says that the rank is at work, as no step does here."""
        for one in batches:
            self._voice.works()
            yield one

    def _inert(self, objects: tuple[Any, ...]) -> dict[str, Any]:
        """What takes the place of a session's own parts meanwhile."""
        kept = Rollback((*_all_of(self._objects), *objects))
        course, feed = _NoPhases(), DataShare(self._ranks, None, lambda steps: None)
        going_on, voice = _NoResume(kept, course, feed), _BareHeartbeat(self._voice)
        nothing: dict[str, Any] = dict.fromkeys(
            ("_restorer", "_saver", "_accountant", "_objects", "_averaging", "_loss")
        )
        return nothing | {
            "_aside": kept,
            "_course": course,
            "_feed": feed,
            "_going_on": going_on,
            "_voice": voice,
            "_saves": _NoSaves(self, voice),
            "_metrics": {},
            "_trained": set(),
        }


@contextlib.contextmanager
def _as_before(session: Scratch, meanwhile: dict[str, Any]) -> Iterator[None]:
    """Parts of a session are others within, and all is put back that these were to keep."""
    luck, kept = random_state.capture(), meanwhile["_aside"]
    former = {name: getattr(session, name) for name in meanwhile}

    def leave() -> None:
        with contextlib.ExitStack() as each:  # the last one first, and all of them
            each.callback(random_state.restore, luck)
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
        except Exception as another:  # told beside what the pass has ended with, not in its place
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
    """No phase of the run."""

    def check_finish(self) -> None:
        raise InvalidInput(
            "run.finish: given within run.scratch; allowed: after the training that is to count"
        )


class _NoResume(Resume):
    """Goes on from nothing: what is restored begins as it is, and is put back, too."""

    def __init__(self, kept: Rollback, course: PhaseProgress, feed: DataShare) -> None:
        super().__init__(None, course, feed)
        self._kept = kept

    def load(self, objects: Stateful) -> Manifest | None:
        self._kept.keep(*_all_of(objects))
        return super().load(objects)

    def replaced(self, objects: Stateful) -> None:
        self._kept.keep(*_all_of(objects))
        super().replaced(objects)


class _NoSaves(SaveSchedule):
    """Saves nothing. Where ranks have to end, all is put back, and then saved.

    Args:
        session: of this rank.
        voice: tells whether they have to.
    """

    def __init__(self, session: Scratch, voice: Heartbeat) -> None:
        super().__init__(session._ranks, voice, CheckpointPolicy(), lambda reason: False, lambda: None)
        self._former = session._course, session._saves
        self.leave = _nothing

    def _park(self) -> None:
        self.leave()
        course, saves = self._former
        saves.park(course.steps)


class _BareHeartbeat(Heartbeat):
    """Tells that the rank is at work, and nothing else.

    Args:
        voice: of the rank.
    """

    def __init__(self, voice: Heartbeat) -> None:
        self.words = voice.words

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
    """There is nothing to leave yet."""
