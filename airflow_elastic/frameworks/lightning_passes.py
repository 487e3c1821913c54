"""What Lightning calls `fit` for and is no training of the run: learning-rate finders, `fast_dev_run`."""

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
    "{given}: given; allowed: none while training, as the batch size is the most that one device takes at once, on any "
    "worker that comes: a restart may find another one, and add up gradients in another order. Find it before, in a "
    "program of its own, and give the loader that batch_size; global_batch stays what it is"
)


#: How many finders of each kind a run has come to, in this attempt: they come in the same order in each.
_FINDERS: WeakKeyDictionary[Session, Counter[str]] = WeakKeyDictionary()


class Passes:
    """Those of one trainer.

    Args:
        trainer: elastic.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._notes: dict[str, Any] = {}  # of the checkpoint that the run goes on from
        self._phase: int | None = (
            None  # of the finders; None in a pass of the script's own, which keeps nothing
        )
        self._begun = False  # the training that `fit` was called for

    @contextlib.contextmanager
    def fit(self, model: Any) -> Iterator[None]:
        """Around one call of `fit`: a training of the run, or a pass that leaves no trace.

        Raises:
            InvalidInput: the phase of the run has had its training.
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
        self._phase = run._course.number

    def begin(self) -> None:
        """Training begins: it is too late for a finder."""
        self._begun = True

    def set_up(self) -> None:
        """Have finders among the callbacks leave no trace.

        Raises:
            InvalidInput: there is one of batch sizes.
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
        """Once in a run: what was found is kept, and restarts have the same.

        Raises:
            InvalidInput: training has begun.
        """
        if self._begun:
            raise InvalidInput(
                f"{type(one).__name__}.lr_find: given at epoch {trainer.current_epoch}; allowed: before the training, "
                "as a restart within an epoch could not do so again. End `fit` there, and begin another one: each is a "
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
                with contextlib.suppress(InvalidInput):  # too many: a restart finds it again
                    run.note(**{name: {"lr": found.results["lr"], "loss": losses}})
        _apply(one, trainer, module)  # the optimizer is as it was before

    def _name(self, one: Any) -> str | None:
        """What a finder's note is called: whether a restart comes to each of them again is the script's business."""
        if self._phase is None:
            return None
        kind = "Tuner" if _is_tuner(one) else type(one).__name__
        rates = f"{one._mode} {one._min_lr:g} {one._max_lr:g} {one._num_training_steps}"
        name = f"lightning.lr_find {self._phase} {kind} {rates}"
        counted = _FINDERS.setdefault(self._trainer.run, Counter())
        counted[name] += 1
        return f"{name} {counted[name]}"


def _is_tuner(one: Any) -> bool:
    """Whether a callback is there for a pass of its own alone, as `Tuner.lr_find` has it."""
    return isinstance(one, LearningRateFinder) and one._early_exit


def _found_before(one: Any, kept: dict[str, Any]) -> Any:
    found = _LRFinder(one._mode, one._min_lr, one._max_lr, one._num_training_steps)
    losses = [math.nan if loss is None else loss for loss in kept["loss"]]
    found.results = {"lr": kept["lr"], "loss": losses}
    log.info("the learning rate was found in an earlier attempt, and is not looked for again")
    return found


def _apply(one: Any, trainer: Any, module: Any) -> None:
    """As Lightning does it with what it has found."""
    if not one._update_attr or one.optimal_lr is None or (rate := one.optimal_lr.suggestion()) is None:
        return
    lightning_setattr(module, _determine_lr_attr_name(module, one._attr_name), rate)
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate


@contextlib.contextmanager
def _as_before(trainer: Any) -> Iterator[None]:
    """The trainer has not been through it."""
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
    """Its next run goes on from nothing. Where only steps are counted, Lightning's own way to say so says the other."""
    loop._restarting = False
    for one in vars(loop).values():
        if isinstance(one, _Loop):
            _begin_anew(one)
