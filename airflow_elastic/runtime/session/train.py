"""The part of a session that calls the training function again, in the same process, when its generation ends.

See ADR 0038. A rank that cannot go on in its process ends, and its agent starts another process in its place.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.core.health.classify import tells_of_lost_peers
from airflow_elastic.runtime.checkpoint.save import random_state
from airflow_elastic.runtime.collectives import connections
from airflow_elastic.runtime.environment import RankEnvironment
from airflow_elastic.runtime.staying.agent_link import (
    ENVIRONMENT,
    AgentLink,
    LeaveGeneration,
    write_error,
)
from airflow_elastic.spec.errors import InvalidInput

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How often a process may begin again without a new step.
TRIES = 3

#: The parts of a session that hold objects of the function, or belong to the process groups.
_PARTS = ("_objects", "_saver", "_restorer", "_resume", "_feed", "_saves", "_accountant", "_loss", "_ranks")


@dataclass
class Stay:
    """What outlives the generations of one process.

    Attributes:
        link: the connection to the agent, within `run.train`.
        functions: those of `run.train` so far.
        model: the model that was restored last.
        again: whether the function is called again.
        reached: the newest step, and `tries` since then.
    """

    link: AgentLink | None = None
    functions: tuple[Callable[[], Any], ...] = ()
    model: Callable[[], torch.nn.Module | None] = lambda: None
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
        three calls without a new step, and if CUDA has failed.

        Several functions in turn: a later failure calls the earlier ones again first, as a new process would. Between
        them there must be no collective.

        Args:
            function: trains. It may call `finish`.
            *arguments: for the function.
            **named: for the function.

        Returns:
            What the function returns.
        """
        stay, call = self._stay, partial(function, *arguments, **named)
        stay.functions += (call,)
        name = os.environ.get(ENVIRONMENT)
        if name is None or stay.link is not None:
            return call()
        luck = random_state.capture()
        stay.link = link = AgentLink(name, connections.cut)
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
                    traceback.clear_frames(left.__traceback__)
                    self._quit(None if self._has_parked else left)
                except Exception as error:
                    if not (link.leaving or _is_of_peers(error)):
                        raise
                    traceback.clear_frames(error.__traceback__)
                    self._quit(error)
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

    def _quit(self, why: BaseException | None) -> None:
        """Say that this rank has left its generation. Raises `why` if the process must end.

        Args:
            why: the error that broke it off; None if the rank has parked. Then its peers may still be in a collective
                with it, so connections are left alone until all have met again.
        """
        stay, link = self._stay, self._stay.link
        if link is None:
            raise RuntimeError("run.train has ended")
        if (hinders := self._hinders()) is not None:
            log.warning("this rank goes on in a new process: %s", hinders)
            link.close()
            if isinstance(why, Exception):
                raise why
            while True:  # its agent ends it
                signal.pause()
        stay.again = True
        if why is not None:
            connections.cut()
            if not link.leaving:
                log.warning("this rank has lost its peers, and waits for the next generation: %s", why)
                write_error(why)
        link.left("parked" if why is None else "broken")

    def _hinders(self) -> str | None:
        """Why this process cannot go on; None if it can. Lets go of what the function has made."""
        session: Any = self
        stay = self._stay
        steps = session.steps
        stay.tries = 0 if steps > stay.reached else stay.tries + 1
        stay.reached = max(steps, stay.reached)
        if stay.tries >= TRIES:
            return f"{TRIES} times it has come to no new step"
        if session._averaging is not None:
            return "run.average has a thread of its own"
        restorer, words = session._restorer, session._heartbeat.words
        has_saved = (restorer is not None and restorer.resumed is not None) or words[shared_page.WRITTEN] > 0
        if session._saver is not None:
            session._saver.abandon()
        session._heartbeat.unlisten()
        for part in _PARTS:
            setattr(self, part, None)
        if stay.model() is not None:
            gc.collect()
        model = stay.model()
        if model is not None and _is_wrapped(model):
            return "the model is wrapped outside of the function of run.train: wrap it within"
        if model is not None and not has_saved:
            return "the model was made outside of the function of run.train, and there is no checkpoint yet"
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
        following.apply()
        if (wanted := os.environ.get("OMP_NUM_THREADS")) != threads and wanted:
            torch.set_num_threads(int(wanted))
        connections.forget_groups()
        log.info("this rank goes on in its process")
        self._begin(RankEnvironment.read())

    def _restores(self, model: torch.nn.Module) -> None:
        """Note the model of the function."""
        self._stay.model = weakref.ref(model)

    def _check_begins(self, model: torch.nn.Module, *, restored: bool) -> None:
        """Refuse to begin again with a model that has been trained."""
        if self._stay.again and not restored and self._stay.model() is model:
            raise InvalidInput(
                "run.train: the run has no checkpoint, and its model is already trained. Make the model within the "
                "function, so that it can begin again"
            )


def _is_of_peers(error: Exception) -> bool:
    """Whether an exception only says that a collective has failed."""
    return isinstance(error, RuntimeError) and tells_of_lost_peers(f"{type(error).__name__}: {error}")


def _is_wrapped(model: torch.nn.Module) -> bool:
    wrapped = any(isinstance(one, DistributedDataParallel) for one in model.modules())
    return wrapped or any(isinstance(one, DTensor) for one in model.parameters())
