"""The part of a session that calls the training function again, in the same process, when its generation ends.

See ADR 0038. A rank that cannot go on in its process ends, and its agent starts another process in its place.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeVar

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.core.health.classify import tells_of_lost_peers
from airflow_elastic.runtime.checkpoint.save import random_state
from airflow_elastic.runtime.collectives import connections
from airflow_elastic.runtime.environment import RankEnvironment
from airflow_elastic.runtime.staying.agent_link import (
    ENVIRONMENT,
    AgentLink,
    ErrorReport,
    LeaveGeneration,
    let_go,
)
from airflow_elastic.spec.errors import ElasticError, InvalidInput
from airflow_elastic.spec.run import RESTART_ME

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How often a process may begin again without a new step.
TRIES = 3

_NOTHING_TO_LOAD = (
    "there is no checkpoint to load into the objects that were made outside of the function of run.train"
)

#: The parts of a session that hold objects of the function, or belong to the process groups.
_PARTS = ("_objects", "_saver", "_restorer", "_resume", "_feed", "_saves", "_accountant", "_loss", "_ranks")


class Noted:
    """Objects, by identity. It does not keep them alive."""

    def __init__(self) -> None:
        self._by_id: dict[int, Callable[[], Any]] = {}

    def add(self, objects: Iterable[Any]) -> None:
        """Note these."""
        for one in objects:
            try:
                self._by_id[id(one)] = weakref.ref(one)
            except TypeError:  # its class allows no weak references: then it counts as alive
                self._by_id[id(one)] = partial(lambda kept: kept, one)

    def forget(self, objects: Iterable[Any]) -> None:
        """Note these no more."""
        for one in objects:
            self._by_id.pop(id(one), None)

    def alive(self) -> list[Any]:
        """Those that still exist."""
        return [one for refer in self._by_id.values() if (one := refer()) is not None]

    def __contains__(self, one: object) -> bool:
        return (refer := self._by_id.get(id(one))) is not None and refer() is one


@dataclass
class Stay:
    """What outlives the generations of one process.

    Attributes:
        link: the connection to the agent, within `run.train`.
        functions: those of `run.train` so far.
        given: the objects that this call has given to `restore`, with the parts of the model.
        trained: those of earlier calls that no checkpoint was loaded into since.
        again: whether the function is called again.
        reached: the newest step, and `tries` since then.
    """

    link: AgentLink | None = None
    functions: tuple[Callable[[], Any], ...] = ()
    given: Noted = field(default_factory=Noted)
    trained: Noted = field(default_factory=Noted)
    again: bool = False
    reached: int = -1
    tries: int = 0


class Train:
    """The method with which a script has its training called again in place."""

    _stay: Stay

    def _begin(self, surroundings: RankEnvironment) -> None:
        """Join the other ranks."""
        raise NotImplementedError

    def train(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call the function with the training loop, and again in this process after a failure or a scale step.

        What the function builds is built again. What was built before it stays as it is: imports, data sets, the CUDA
        context, compiled code. Wrap the model (DDP, FSDP2) within the function, because wrappers belong to the ranks of
        a generation. The loop's objects are restored within the function, by `restore`. Random generators are set back
        to what they were at the first call.

        If a rank fails, or workers come or leave, the other ranks leave their collectives, meet again and go on from
        the newest state. A process ends, and another is started in its place, if the function itself raises an error.
        So it is if the function does not come to `step` or a collective within 5 s, or calls `average`. So it is after
        three calls without a new step, and if CUDA has failed. So it is before the first checkpoint, for a model that
        is made before the function. An error counts only in the first call of a process: after others, a new process
        calls the function again.

        Several functions in turn: a later failure calls the earlier ones again first, as a new process would. Between
        them there must be no collective.

        Args:
            function: trains. It may call `finish`.
            *arguments: for the function.
            **named: for the function.

        Returns:
            What the function returns.

        Raises:
            InvalidInput: what is given is no function.
        """
        if not callable(function):
            raise InvalidInput(
                f"run.train: given {function!r}; allowed: a function, which is not called here. Its arguments follow: "
                "run.train(training, data)"
            )
        stay, call = self._stay, partial(function, *arguments, **named)
        stay.functions += (call,)
        name = os.environ.get(ENVIRONMENT)
        if name is None or stay.link is not None:
            return call()
        try:
            stay.link = link = AgentLink(name, connections.cut)
        except OSError as error:
            log.warning("this process cannot stay, because it does not reach its agent: %s", error)
            return call()
        luck = random_state.capture()
        try:
            while True:
                try:
                    if stay.again:
                        self._join_next(link)
                        random_state.restore(luck)
                        for earlier in stay.functions[:-1]:
                            earlier()
                    return call()
                except LeaveGeneration as left:
                    let_go(left)
                    self._quit(None, parked=self._has_parked)
                except Exception as error:
                    if not (link.leaving or _is_of_peers(error)):
                        if not stay.again:
                            raise
                        # An earlier call may have left its cause behind, so a new process calls the function again.
                        log.exception("a new process calls the function again, after this error")
                        ErrorReport.of(error).write()
                        raise SystemExit(RESTART_ME) from None
                    self._quit(ErrorReport.of(error))
        finally:
            link.close()
            stay.link = None

    def _check_stays(self) -> None:
        """End the function if this rank has the order to leave."""
        if self._must_leave:
            raise LeaveGeneration

    @property
    def _must_leave(self) -> bool:
        return self._stay.link is not None and self._stay.link.leaving

    @property
    def _can_leave(self) -> bool:
        """Whether a rank that has parked can go on in its process."""
        return self._stay.link is not None

    @property
    def _has_parked(self) -> bool:
        return bool(self._heartbeat.words[shared_page.PARKED])  # type: ignore[attr-defined]

    def _quit(self, error: ErrorReport | None, *, parked: bool = False) -> None:
        """Say that this rank has left its generation. Ends the process if it cannot go on.

        Args:
            error: that broke it off; None if it leaves by order.
            parked: whether it has parked. Then its peers may still be in a collective with it, so connections are left
                alone until all have met again.
        """
        stay, link = self._stay, self._stay.link
        if link is None:
            raise RuntimeError("run.train has ended")
        if error is not None and not link.leaving:
            log.warning("this rank has lost its peers: %s", error.error)
            error.write()
        if (hinders := self._hinders()) is not None:
            log.warning("this rank goes on in a new process: %s", hinders)
            link.close()
            if error is None:
                _await_end()
            raise SystemExit(1)
        stay.again = True
        if not parked:
            connections.cut()
        link.left("parked" if parked else "broken")

    def _hinders(self) -> str | None:
        """Why this process cannot go on; None if it can. Lets go of what the function has made."""
        session: Any = self
        stay = self._stay
        steps = session._progress.steps
        stay.tries = 0 if steps > stay.reached else stay.tries + 1
        stay.reached = max(steps, stay.reached)
        if stay.tries >= TRIES:
            return f"{TRIES} times it has come to no new step"
        if session._averaging is not None:
            return "run.average has a thread of its own"
        if session._saver is not None:
            session._saver.abandon()
        session._heartbeat.unlisten()
        for part in _PARTS:
            setattr(self, part, None)
        trained, stay.trained, stay.given = [*stay.trained.alive(), *stay.given.alive()], Noted(), Noted()
        stay.trained.add(trained)
        del trained
        if any(map(_is_wrapped, stay.trained.alive())):
            gc.collect()
        if any(map(_is_wrapped, stay.trained.alive())):
            return "the model is wrapped outside of the function of run.train: wrap it within"
        try:
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()
        except RuntimeError as error:
            return f"CUDA has failed: {error}"
        return None

    def _join_next(self, link: AgentLink) -> None:
        """Wait for the next generation, and join it."""
        main = threading.current_thread() is threading.main_thread()
        # A handler of the script's may wait for the end of a step, and no step follows.
        former = signal.signal(signal.SIGTERM, signal.SIG_DFL) if main else None
        following = link.next()
        if following is None:
            raise SystemExit("the agent of this worker is gone")
        if former is not None:
            signal.signal(signal.SIGTERM, former)
        threads = os.environ.get("OMP_NUM_THREADS")
        has_own = threads not in (None, str(torch.get_num_threads()))  # the script has chosen another number
        following.apply()
        surroundings = RankEnvironment.read()
        if surroundings.run_uri and self._needs_checkpoint() and _has_none(surroundings.run_uri):
            log.warning("this rank begins in a new process: %s", _NOTHING_TO_LOAD)
            link.close()
            _await_end()
        link.joined()
        wanted = os.environ.get("OMP_NUM_THREADS")
        if wanted and wanted != threads and not has_own:
            torch.set_num_threads(int(wanted))
        connections.forget_groups()
        log.info("this rank goes on in its process")
        self._begin(surroundings)

    def _needs_checkpoint(self) -> bool:
        """Whether objects are trained that were made outside of the function."""
        trained = self._stay.trained
        if trained.alive():
            gc.collect()
        return bool(trained.alive())

    def _note_restored(self, objects: Iterable[Any], *, restored: bool) -> None:
        """Note what was given to `restore`, and whether a checkpoint was loaded into it.

        Ends the process if there was none, and an earlier call has trained an object: a new process makes it again.
        """
        stay, given = self._stay, [*objects]
        if restored:
            stay.trained.forget(given)
        elif any(one in stay.trained for one in given):
            log.warning("a new process calls the function again: %s", _NOTHING_TO_LOAD)
            raise SystemExit(RESTART_ME)
        stay.given.add(given)


def _is_of_peers(error: Exception) -> bool:
    """Whether an exception only says that a collective has failed."""
    return isinstance(error, RuntimeError) and tells_of_lost_peers(f"{type(error).__name__}: {error}")


def _is_wrapped(given: object) -> bool:
    if not isinstance(given, torch.nn.Module):
        return False
    return isinstance(given, DistributedDataParallel) or any(
        isinstance(one, DTensor) for one in given.parameters(recurse=False)
    )


def _has_none(run_uri: str) -> bool:
    """Whether the run has no checkpoint. All workers have met, so no process writes one."""
    with contextlib.suppress(ElasticError):  # `restore` reports it
        return not checkpoints.steps(open_store(run_uri))
    return False


def _await_end() -> NoReturn:
    """Wait until the agent ends this process, whatever handler the script has."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        signal.pause()
