"""How a rank saves: it copies the state into memory of its agent. Training waits only for this copy.

The agent writes it to storage and commits it while training goes on (`tiers.storage.writer`).
"""

from __future__ import annotations

import gc
import logging
import platform
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy
import torch
from torch.nn.parameter import is_lazy

import airflow_elastic
from airflow_elastic.adapters.host import shared_page
from airflow_elastic.runtime.checkpoint.optimizers.state_allocation import with_allocated_state
from airflow_elastic.runtime.checkpoint.save.layout import Layout, Places
from airflow_elastic.runtime.checkpoint.save.memory_estimate import check_memory, estimate_memory
from airflow_elastic.runtime.checkpoint.save.overlapped_copy import OverlappedCopy, wait_before_steps
from airflow_elastic.runtime.checkpoint.save.repeated_layout import RepeatedLayout
from airflow_elastic.runtime.checkpoint.save.replica_check import ReplicaCheck
from airflow_elastic.runtime.checkpoint.save.staging import RankPosition, lay_out
from airflow_elastic.runtime.checkpoint.save.staging_area import ProtectedStates, StagingArea
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful, state_of, ties_of
from airflow_elastic.runtime.checkpoint.tensors.host_numbers import HostNumbers
from airflow_elastic.runtime.checkpoint.tensors.model_walk import ModelWalk
from airflow_elastic.runtime.checkpoint.tensors.shared_storage import SharedStorage
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.tiers.shared_memory import COUNT, DISK, IN_BETWEEN, MEMORY, Note
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.checkpoints.phases import PhaseRecord
from airflow_elastic.spec.checkpoints.sample_records import Account
from airflow_elastic.spec.errors import ElasticError

log = logging.getLogger(__name__)

#: Reasons of saves that may be skipped, because the next one follows soon.
_CAN_BE_LEFT_OUT = ("steps", "seconds")

#: The reason of a save after which ranks end. As time is short, it does not wait until older states are written.
BREAKPOINT = "breakpoint"

#: The name of the object with the order of the data. It has a space, unlike the names of a script's objects.
ORDER = "data order"

_POLL_SECONDS = 0.005

#: Replicas are compared at so many saves: at the first one, optimizers may have no state yet.
_COMPARED = 2

_DEFAULT = CheckpointPolicy()


@dataclass(frozen=True, slots=True)
class Position:
    """A run's position in the data: `samples` since step 0, `offset` of them in `epoch`."""

    epoch: int = 0
    offset: int = 0
    samples: int = 0


#: The versions that are recorded in each checkpoint.
VERSIONS = {
    "airflow_elastic": airflow_elastic.__version__,
    "python": platform.python_version(),
    "numpy": numpy.__version__,
    "torch": torch.__version__,
    **({"cuda": torch.version.cuda} if torch.version.cuda and torch.cuda.is_available() else {}),
}


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection: thousands of new small objects would trigger a search through all objects."""
    looks = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looks:
            gc.enable()


class Saver:
    """Saves the states of one rank of one generation.

    Args:
        ranks: this rank among the others.
        generation: number of their rendezvous.
        stage: this rank's slots.
        words: this rank's shared page, in which the agent reports the steps that it has written.
        policy: of the run.
    """

    def __init__(
        self,
        ranks: Collectives,
        *,
        generation: int,
        stage: StagingArea,
        words: memoryview[float],
        policy: CheckpointPolicy = _DEFAULT,
    ) -> None:
        self._ranks, self._generation, self._stage, self._words = ranks, generation, stage, words
        self._place = RankPosition(ranks.rank, ranks.world_size, stage.procs)
        self._compared = 0
        self._check: ReplicaCheck | None = None  # of the save before, whose values have come by now
        self._shape: dict[str, Any] = {}  # of the tensors that were compared
        self._places: Places | None = None  # of the state that was compared
        self._layouts = RepeatedLayout(self._lay_out)
        self._staged = -1  # the last step that storage will get
        self._newest = -1
        self._for_disk: list[int] = []  # the newest steps that the disk will get
        self._policy, self._overlap = policy, policy.overlap
        self._copying: OverlappedCopy | None = None
        self._hooks: list[Any] = []

    def save(
        self,
        objects: Stateful,
        step: int,
        position: Position,
        *,
        reason: str,
        metrics: Mapping[str, torch.Tensor | float],
        account: Account | None = None,
        phases: tuple[PhaseRecord, ...] = (),
        notes: Mapping[str, Any] | None = None,
    ) -> bool:
        """Copy the state after step `step` into memory of the agent, which writes it to storage. All ranks together.

        If the agent is still writing the state before, this depends on the reason:

        - A periodic save to storage is skipped.
        - A save in between, for memory or disk, takes the other slot. With buddies or disks, it is skipped while that
          slot is being read, or while neighbours or disks lack the state before.
        - Other saves wait; the one at a breakpoint only until a slot is free.

        Returns:
            Whether it was saved.

        Raises:
            InvalidInput: the state cannot be saved, or there is not enough memory for it.
        """
        if reason in _CAN_BE_LEFT_OUT and self._ranks.any(self._busy()):
            log.info("step %d is not saved: step %d is still being written", step, self._staged)
            self._words[shared_page.LEFT_OUT] = step + 1.0
            return False
        if reason in IN_BETWEEN and step == self._staged:
            return False
        self.join()
        spare = self._needed if reason in IN_BETWEEN else self._unwritten
        others_wait = self._policy.buddies or self._policy.disk
        if reason in IN_BETWEEN and others_wait and self._ranks.any(self._held_up(reason)):
            return False
        if reason not in (*IN_BETWEEN, BREAKPOINT):
            self._wait_until_written()
        numbers = HostNumbers(metrics)
        plan = self._plan(objects)
        beside = self._overlap and reason in (*_CAN_BE_LEFT_OUT, *IN_BETWEEN)
        self._check_alike(plan)
        if not beside:
            self._finish_check()
        note = Note(
            step=step,
            generation=self._generation,
            rank=self._ranks.rank,
            world_size=self._ranks.world_size,
            epoch=position.epoch,
            offset=position.offset,
            samples=position.samples,
            reason=reason,
            kept_bytes=plan.kept_bytes,
            kept=plan.kept,
            rest=plan.rest,
            perhaps=plan.perhaps,
            account=account,
            versions=VERSIONS,
            phases=phases,
            notes=dict(notes or {}),
        )
        waiting = partial(self._waiting, shared_page.ENDING) if reason == BREAKPOINT else self._waiting
        if beside:
            self._copying = self._stage.put_beside(plan, note, numbers, spare, waiting)
        else:
            self._stage.put(plan, note, numbers, spare, waiting)
        self._newest = step  # not earlier: the copy must not overwrite the state before
        if reason not in IN_BETWEEN:
            self._staged = step
            self._words[shared_page.SAVED] = step + 1.0
        if reason != MEMORY and self._policy.disk:
            self._for_disk = [*self._for_disk[-COUNT:], step]
        return True

    def attend(self, optimizers: Iterable[Any]) -> None:
        """If copies overlap with training, make the steps of these optimizers wait for them."""
        if self._overlap and (hooks := wait_before_steps(optimizers, self._settle)) is not None:
            self._hooks += hooks
        elif self._overlap:
            log.warning("checkpoint.overlap needs optimizers of torch.optim: training waits for each copy")
            self._overlap = False

    def abandon(self) -> None:
        """This rank leaves its generation: finish or drop a copy that is running, and let go of the optimizers."""
        with suppress(ElasticError):
            self.join()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _check_alike(self, plan: Layout) -> None:
        """Raise InvalidInput if ranks have different tensors: no rank would write some of them.

        This is checked at the first saves of a generation, and when the tensors have changed since the last one. Their
        values are compared by `_finish_check`.
        """
        self._finish_check()
        shape = self._shape
        if plan.places is not self._places:
            shape = {name: (one.shape, one.dtype) for name, one in plan.alike.items()}
        if self._compared >= _COMPARED and self._ranks.any(shape != self._shape):
            self._compared = 0
        self._shape, self._places = shape, plan.places
        if self._compared < _COMPARED:
            self._check = ReplicaCheck(plan.alike, self._ranks)

    def _finish_check(self) -> None:
        """Warn if ranks have different values. Beside training, this is done with the next save."""
        if self._check is not None:
            # After a warning no more checks follow, so it is logged once.
            self._compared += 1 if self._check.result() else _COMPARED
            self._check = None

    def _wait_until_written(self) -> None:
        with self._waiting():
            while self._busy():
                time.sleep(_POLL_SECONDS)

    @contextmanager
    def _waiting(self, how: float = 1.0) -> Iterator[None]:
        """A context for the time in which training waits: the agent writes at full speed meanwhile."""
        self._words[shared_page.WAITING] = how
        try:
            yield
        finally:
            self._words[shared_page.WAITING] = 0.0

    def join(self) -> None:
        """Wait until no copy is running.

        Raises:
            InvalidInput: the state has changed while it was copied, or could not be copied.
        """
        if self._copying is not None:
            self._copying.join()
            self._copying = None

    def _settle(self) -> None:
        if self._copying is not None:
            self._copying.settle()

    def check_memory(self, objects: Stateful) -> None:
        """Refuse to begin if there is not enough memory for saves, else have it provided. All ranks call this together.

        An optimizer's state may be unknown before its first step; then only the rest is checked. With lazy modules
        nothing is checked. In both cases the first save fails if there is not enough memory.

        Raises:
            InvalidInput: says how much memory saves need, and how much there is.
        """
        with with_allocated_state(objects.optimizers):
            is_known = not any(map(is_lazy, objects.model.parameters()))
            at_least = not all(one.state for one in objects.optimizers)
            plan = self._plan(objects) if is_known else None
        mine = None if plan is None else estimate_memory(self._stage, plan, at_least=at_least)
        check_memory(mine, self._ranks, self._place.procs)
        if plan is not None and not at_least:
            self._stage.ask_for(plan.total_bytes)  # it is there when the first step is done

    def announce(self, objects: Stateful) -> threading.Thread:
        """Have the agent provide memory for later saves. Call this when optimizers have their states, if possible.

        Returns:
            The thread that maps it, and pins it for a GPU.
        """
        # A gradient scaler may have skipped the first step.
        with with_allocated_state(objects.optimizers):
            return self._stage.announce(self._plan(objects))

    @_uncollected()
    def _plan(self, objects: Stateful) -> Layout:
        walk = ModelWalk(objects.model)
        state = state_of(objects, self._ranks.rank, walk)
        return self._layouts.of(state, walk.named_parameters()[1])

    def _lay_out(self, state: Mapping[str, Any], parameters: Sequence[torch.Tensor]) -> Layout:
        # Only parameters are alike on all ranks. The forward pass may change buffers, and DDP uses rank 0's.
        known = SharedStorage(parameters)
        first = {f"model.{name}" for name, one in state["model"].items() if one not in known}
        return lay_out(state, self._place, own=f"random.{self._ranks.rank}", first=first, ties=ties_of(state))

    def _busy(self) -> bool:
        """Whether the agent has not yet written the last state for storage."""
        return self._staged >= 0 and self._words[shared_page.KEPT] < self._staged

    def _held_up(self, reason: str) -> bool:
        """Whether no slot is free, or only that of the newest state that survives the loss of a worker.

        Disks keep two states. If one disk were further ahead of the others, no state would be on all disks.
        """
        ungiven = self._policy.buddies and self._words[shared_page.GIVEN] < self._newest
        behind = reason == DISK and bool(self._not_on_disk)
        return ungiven or behind or not self._stage.has_place(self._needed)

    @property
    def _not_on_disk(self) -> frozenset[tuple[int, int]]:
        done = self._words[shared_page.ON_DISK]
        return frozenset((self._generation, step) for step in self._for_disk if step > done)

    def _unwritten(self) -> ProtectedStates:
        """The states that the agent still has to write: those for storage must not be overwritten."""
        written = frozenset({(self._generation, self._staged)} if self._busy() else ())
        return ProtectedStates(written, self._not_on_disk)

    def _needed(self) -> ProtectedStates:
        """The same, for a save that may be skipped: states for the disk must not be overwritten either."""
        unwritten = self._unwritten()
        return ProtectedStates(unwritten.kept | unwritten.rather)


def in_between(policy: CheckpointPolicy, step: int) -> str | None:
    """The reason to save the state after a step to memory or disk only; None if it is not saved."""
    # A state for the disk is in memory, too.
    for often, reason in ((policy.disk_every_steps, DISK), (policy.memory_every_steps, MEMORY)):
        if often is not None and step % often == 0:
            return reason
    return None
