"""Passes of Lightning's `fit` that are not part of the training: learning-rate finders, `fast_dev_run`."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from airflow_elastic.frameworks import missing
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.errors import InvalidInput

try:
    from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
    from lightning.pytorch.loops import _Loop
    from lightning.pytorch.tuner.lr_finder import _determine_lr_attr_name, _LRFinder
    from lightning.pytorch.utilities.exceptions import _TunerExitException
    from lightning.pytorch.utilities.parsing import lightning_setattr
except ImportError as error:
    raise missing("lightning", "lightning") from error

log = logging.getLogger(__name__)

_BATCH_SIZE = (
    "{given}: given; allowed: none while training. After a restart on another worker it may find another batch size, "
    "and gradients would be added in another order. Find it before, in a "
    "program of its own, and give the loader that batch_size; global_batch stays the same"
)


#: Number of finders of each kind in this attempt so far. Their order is the same in each attempt.
_FINDERS: WeakKeyDictionary[Session, Counter[str]] = WeakKeyDictionary()


class Passes:
    """The passes of one trainer.

    Args:
        trainer: the elastic trainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._notes: dict[str, Any] = {}  # notes of the checkpoint that the run goes on from
        self._phase: int | None = None  # phase of the finders; None in a scratch pass of the script
        self._begun = False  # whether the training of this call of `fit` has begun

    @contextlib.contextmanager
    def fit(self, model: Any) -> Iterator[None]:
        """Around one call of `fit`: a training of the run, or a pass after which all state is as before.

        Raises:
            InvalidInput: the phase of the run already has a training.
        """
        trainer, run = self._trainer, self._trainer.run
        self._begun, self._phase = False, None
        if run.in_scratch:
            with _as_before(trainer):
                yield
        elif trainer.fast_dev_run or any(map(_is_tuner, trainer.callbacks)):
            self._look(run)
            with _as_before(trainer), run.scratch(model):
                yield
        else:
            with run.training():
                yield

    def _look(self, run: Session) -> None:
        self._notes = dict(run.resumed.notes) if run.resumed is not None else {}
        self._phase = run._progress.number

    def begin(self) -> None:
        """Note that training begins: from now on a finder is refused."""
        self._begun = True

    def set_up(self) -> None:
        """Make finders among the callbacks restore all state after their pass.

        Raises:
            InvalidInput: a callback is a finder of batch sizes.
        """
        for one in self._trainer.callbacks:
            if isinstance(one, BatchSizeFinder):
                given = "Tuner.scale_batch_size" if one._early_exit else type(one).__name__
                raise InvalidInput(_BATCH_SIZE.format(given=given))
            if isinstance(one, LearningRateFinder):
                if not self._trainer.run.in_scratch:
                    self._look(self._trainer.run)
                one.lr_find = partial(self._lr_find, one)

    def _lr_find(self, one: Any, trainer: Any, module: Any) -> None:
        """Find the learning rate once in a run. The result is kept, and restarts use it again.

        Raises:
            InvalidInput: training has begun.
        """
        if self._begun:
            raise InvalidInput(
                f"{type(one).__name__}.lr_find: given at epoch {trainer.current_epoch}; allowed: before the training. "
                "A restart within an epoch could not repeat it. End `fit` there, and call it again: each call is a "
                "phase of the run"
            )
        run, name = trainer.run, self._name(one)
        if name is not None and (kept := self._notes.get(name)) is not None:
            one.optimal_lr = _found_before(one, kept)
            _apply(one, trainer, module)
            if one._early_exit:
                raise _TunerExitException
            return
        try:
            with contextlib.nullcontext() if run.in_scratch else run.scratch():
                type(one).lr_find(one, trainer, module)
        finally:
            _begin_anew(trainer.fit_loop)
            if name is not None and (found := one.optimal_lr) is not None:
                losses = [loss if math.isfinite(loss) else None for loss in found.results["loss"]]
                with contextlib.suppress(
                    InvalidInput
                ):  # too large for a note: a restart finds the rate again
                    run.note(**{name: {"lr": found.results["lr"], "loss": losses}})
        _apply(one, trainer, module)  # because the end of the scratch pass has reset the optimizer

    def _name(self, one: Any) -> str | None:
        """Name of a finder's note. The script must call its finders in the same order in each attempt."""
        if self._phase is None:
            return None
        kind = "Tuner" if _is_tuner(one) else type(one).__name__
        rates = f"{one._mode} {one._min_lr:g} {one._max_lr:g} {one._num_training_steps}"
        name = f"lightning.lr_find {self._phase} {kind} {rates}"
        counted = _FINDERS.setdefault(self._trainer.run, Counter())
        counted[name] += 1
        return f"{name} {counted[name]}"


def _is_tuner(one: Any) -> bool:
    """Whether a callback comes from `Tuner.lr_find`, which calls `fit` only for its own pass."""
    return isinstance(one, LearningRateFinder) and one._early_exit


def _found_before(one: Any, kept: dict[str, Any]) -> Any:
    found = _LRFinder(one._mode, one._min_lr, one._max_lr, one._num_training_steps)
    losses = [math.nan if loss is None else loss for loss in kept["loss"]]
    found.results = {"lr": kept["lr"], "loss": losses}
    log.info("an earlier attempt has found the learning rate: it is used again")
    return found


def _apply(one: Any, trainer: Any, module: Any) -> None:
    """Set the learning rate that was found, as Lightning does."""
    if not one._update_attr or one.optimal_lr is None or (rate := one.optimal_lr.suggestion()) is None:
        return
    lightning_setattr(module, _determine_lr_attr_name(module, one._attr_name), rate)
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate


@contextlib.contextmanager
def _as_before(trainer: Any) -> Iterator[None]:
    """Restore the trainer's counters and callbacks afterwards."""
    loops = copy.deepcopy(trainer.fit_loop.state_dict())
    states = [(one, copy.deepcopy(one.state_dict())) for one in trainer.callbacks]
    limits = trainer.fit_loop.max_epochs, trainer.fit_loop.epoch_loop.max_steps
    try:
        yield
    finally:
        trainer.fit_loop.load_state_dict(loops)
        _begin_anew(trainer.fit_loop)
        trainer.fit_loop.max_epochs, trainer.fit_loop.epoch_loop.max_steps = limits
        trainer.fit_loop._combined_loader = None
        trainer.should_stop = False
        for one, state in states:
            if state:
                one.load_state_dict(state)


def _begin_anew(loop: Any) -> None:
    """Make the loop start from the beginning. Lightning's own way does the opposite if only steps are counted."""
    loop._restarting = False
    for one in vars(loop).values():
        if isinstance(one, _Loop):
            _begin_anew(one)
