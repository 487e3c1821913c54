"""Lightning's `Trainer` as an elastic training:

    from airflow_elastic.frameworks.lightning import ElasticTrainer

    trainer = ElasticTrainer(global_batch=64, max_epochs=3)
    trainer.fit(module, loader)
    trainer.finish()

The loader is a DataLoader, as ever; or the module's own, or a data module's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from airflow_elastic.frameworks import lottery, missing
from airflow_elastic.frameworks.epochs import Epochs, most_at_once
from airflow_elastic.frameworks.lightning_counts import add, stand, steps_of_fit
from airflow_elastic.frameworks.lightning_passes import Passes
from airflow_elastic.runtime.model_changes.callback_changes import ModelShape
from airflow_elastic.runtime.session.session import Session, joined
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.validation import number_in, procs_count

try:
    from lightning.pytorch import Callback, LightningModule, Trainer, callbacks
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment
    from lightning.pytorch.utilities.model_helpers import is_overridden
except ImportError as error:
    raise missing("lightning", "lightning") from error

log = logging.getLogger(__name__)

#: What follows from where the training runs, or from its run's specification.
_OURS = {
    "devices": "as many as the worker has ranks",
    "num_nodes": "as many as there are workers",
    "accumulate_grad_batches": "it follows from global_batch, the loader's batch_size and the number of ranks",
    "limit_train_batches": "an epoch has all samples; give the loader a smaller data set, or say max_steps",
    "overfit_batches": "an epoch has all samples; give the loader a smaller data set",
}


class ElasticTrainer(Trainer):  # type: ignore[misc]
    """`lightning.pytorch.Trainer`, elastic.

    What its calls do beside `fit`. A pass that leaves no trace has no phase, checkpoint, steps or samples:

    - `Tuner(trainer).lr_find` and the callback `LearningRateFinder` leave no trace except the rate. The rate is saved,
      and a restart does not search again.
    - `LearningRateFinder` after the first epoch, as in `FineTuneLearningRateFinder`, is refused. End `fit` there, and
      begin another one.
    - `Tuner(trainer).scale_batch_size`, and the callback `BatchSizeFinder` in `fit`, are refused. Find the batch size
      of a device in a separate program.
    - `fast_dev_run` leaves no trace: `fit` tries every line, and weights are as before.
    - Sanity checks (`num_sanity_val_steps`), `validate`, `test` and `predict` leave no trace except random numbers
      drawn. With them in each attempt, a script ends with the same bits.
    - In a second `fit` of the same trainer optimizers begin again, and counts of epochs and steps go on. Raise the
      limit before: `trainer.fit_loop.max_epochs = 4`, or `trainer.fit_loop.epoch_loop.max_steps`.

    Args:
        global_batch: samples of one optimizer step, all ranks together.
        seed: of the order of samples.
        options: the trainer's arguments. Its own checkpoints are off unless `enable_checkpointing` says otherwise.

    Attributes:
        run: this rank's session.
    """

    def __init__(self, *, global_batch: int, seed: int = 0, **options: Any) -> None:
        for name in sorted(_OURS.keys() & options.keys()):
            raise InvalidInput(f"{name}: given {options[name]!r}; allowed: nothing, {_OURS[name]}")
        self.run: Session = joined()
        self._global_batch, self._seed = global_batch, seed
        self._epochs: _Epochs | None = None
        self._passes = Passes(self)
        local = number_in(os.environ, "LOCAL_WORLD_SIZE", 1, rule=procs_count)
        environment = [TorchElasticEnvironment()] if "RANK" in os.environ else []
        super().__init__(
            **{
                "enable_checkpointing": False,
                **options,
                "devices": local,
                "num_nodes": self.run.world_size // local,
                "plugins": [*_listed(options.get("plugins")), *environment],
                "callbacks": [_Settling(), *_listed(options.get("callbacks")), _Reporting(self.run)],
            }
        )

    def fit(self, model: Any, train_dataloaders: Any = None, *others: Any, **options: Any) -> None:
        """Train, from where the run stands. Each call is a phase of the run: a restart passes by what is complete.

        Args:
            model: as the trainer's.
            train_dataloaders: a DataLoader, or a data module; its `batch_size` is the most samples that a device takes
                at once. In which order which samples come is the run's own business.
            others: the trainer's further arguments.
            options: the trainer's further arguments.

        Raises:
            InvalidInput: a callback averages weights, and would begin anew with each attempt; or a checkpoint of the
                trainer's own is given.
        """
        if [*others[2:3], options.get("ckpt_path")][0] is not None:
            raise InvalidInput(
                "ckpt_path: given; allowed: none, as the run goes on from its own checkpoints. To begin with weights "
                "that something else has trained, elastic.load_weights(file, module) before"
            )
        given = (train_dataloaders, options.get("datamodule"), *others[1:2], model)
        data = next(one for one in given if one is not None)
        with self._passes.fit(model):
            self._fit(model, train_dataloaders, data, *others, **options)

    def _fit(self, model: Any, train_dataloaders: Any, data: Any, *others: Any, **options: Any) -> None:
        self._epochs = None
        if hasattr(data, "train_dataloader"):
            theirs, data.train_dataloader = data.train_dataloader, self._feeding(data.train_dataloader)
            try:
                super().fit(model, train_dataloaders, *others, **options)
            finally:
                data.train_dataloader = theirs
        else:
            super().fit(model, self._feeding(lambda: data)(), *others, **options)

    def _feeding(self, theirs: Callable[[], Any]) -> Callable[[], Epochs]:
        def ours() -> Epochs:
            loader = theirs()
            if self._epochs is not None:
                self._epochs.settle()  # it is loaded anew: what was done with what was before counts
            self._epochs = _Epochs(
                self.run,
                loader,
                global_batch=self._global_batch,
                micro_batch=most_at_once(loader),
                seed=self._seed,
            )
            self.accumulate_grad_batches = self._epochs.pieces
            return self._epochs

        return ours

    def finish(self, **metrics: float) -> None:
        """Training, and what was to be measured, is complete: hand over the results. All ranks call this together.

        Args:
            metrics: what `validate` returns, for example. (The numbers of a training that had come to its end before
                this attempt began are not in `callback_metrics`.)
        """
        self.run.finish(**metrics)


class _Epochs(Epochs):
    """Is as long as a whole epoch to the trainer that loads it, which counts by that when to validate and to end.

    Attributes:
        begun: the trainer is through with that.
        on_first: is called before the first batch is given: by then the trainer has begun to count batches anew, of
            which some of this epoch are behind.
    """

    begun = False
    on_first: Callable[[], None] | None = None

    def __len__(self) -> int:
        return super().__len__() if self.begun else self.whole

    def __iter__(self) -> Iterator[Any]:
        for content in super().__iter__():
            if self.on_first is not None:
                self.on_first()
                self.on_first = None
            yield content


def _check_hooks(theirs: Iterable[Any], module: LightningModule) -> None:
    """Whoever writes into Lightning's own checkpoints is not asked here: what is kept is what has a state.

    Raises:
        InvalidInput: it would go on with half of what it needs.
    """
    averaging = getattr(callbacks, "WeightAveraging", ())
    for one in theirs:
        name = f"{type(one).__name__}.on_save_checkpoint"
        if isinstance(one, averaging):
            raise InvalidInput(
                f"{name} would keep the averaged weights, and is not called: they would begin anew with each attempt. "
                "Keep them in a module of your own, torch.optim.swa_utils.AveragedModel(…).requires_grad_(False) for "
                "example, as a part of the LightningModule: what that holds is saved"
            )
        if isinstance(one, callbacks.StochasticWeightAveraging) and one.pl_module_contains_batch_norm(module):
            raise InvalidInput(
                "StochasticWeightAveraging: given, with a model that has batch norms; allowed: one without, as it ends "
                "with a pass over the data that makes no steps, and is no part of the run. Have the averaged weights "
                "in a module of your own (torch.optim.swa_utils.AveragedModel), and torch.optim.swa_utils.update_bn "
                "after trainer.fit"
            )
        if isinstance(one, callbacks.GradientAccumulationScheduler):
            raise InvalidInput(
                "GradientAccumulationScheduler: given; allowed: none, as how many batches gradients are accumulated of "
                "follows from global_batch. For another one from some epoch on, begin a run of its own there"
            )
        if isinstance(one, Callback | LightningModule) and is_overridden("on_save_checkpoint", one):
            log.warning(
                "%s is not called: what it would keep is in no checkpoint of the run. What state_dict returns is, of "
                "callbacks and data modules; of modules, parameters and buffers",
                name,
            )


class _Settling(Callback):  # type: ignore[misc]
    """The first one: what was done before an epoch counts before anybody begins the next."""

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            trainer._passes.set_up()

    def on_train_epoch_start(self, trainer: Any, pl_module: LightningModule) -> None:
        trainer._epochs.settle()


class _Reporting(Callback):  # type: ignore[misc]
    """Restores before the first step, and tells the run of each."""

    def __init__(self, run: Session) -> None:
        self._run = run
        self._weight = 1.0
        self._losses: list[torch.Tensor] = []  # of the pieces of the step in flight
        self._steps = 0  # of optimizers, as the trainer counts them
        self._without_step = False  # and told
        self._held: list[Any] = []  # callbacks that are not to begin an epoch once more

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            _check_hooks([*trainer.callbacks, pl_module], pl_module)

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        trainer._passes.begin()
        schedules = {
            f"schedule{number}": config.scheduler
            for number, config in enumerate(trainer.lr_scheduler_configs)
        }
        before = trainer.fit_loop.epoch_progress.current.completed  # of an earlier call of `fit`
        self._run.expect(steps_of_fit(trainer, before))
        progress = _Progress(trainer)
        self._run.restore(
            trainer.strategy.model,
            *trainer.strategy.optimizers,
            rebuild=lambda resumed: progress.rebuild(self._run.peek("progress")),
            **schedules,
            precision=trainer.precision_plugin,
            progress=progress,
        )
        progress.load_data()
        self._held = _held_back(trainer) if trainer._epochs.given else []
        stand(trainer.fit_loop.epoch_progress, before + int(trainer._epochs.behind))
        self._steps = trainer.global_step

    def on_train_epoch_start(self, trainer: Any, pl_module: LightningModule) -> None:
        while self._held:
            del self._held.pop().on_train_epoch_start
        if not trainer._epochs.begun:
            trainer._epochs.begun = True
            iter(trainer.fit_loop._data_fetcher)  # looks again how long this epoch is: what is left of it
            behind = trainer.fit_loop.epoch_loop.batch_progress.current
            trainer._epochs.on_first = partial(add, behind, trainer._epochs.given)

    def on_train_batch_start(
        self, trainer: Any, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._weight = trainer._epochs.weight()

    def on_before_backward(self, trainer: Any, pl_module: LightningModule, loss: torch.Tensor) -> None:
        weight, scaler = self._weight, getattr(trainer.precision_plugin, "scaler", None)
        told = loss.detach() * weight
        if scaler is not None and scaler.is_enabled():  # what comes here is scaled already
            told /= scaler.scale(torch.ones((), device=loss.device))
        self._losses.append(told)
        if weight != 1.0:
            loss.register_hook(lambda gradient: gradient * weight)  # type: ignore[no-untyped-call]

    def on_train_batch_end(
        self, trainer: Any, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        due = trainer.global_step != self._steps
        if not due and self._run.step_due and not pl_module.automatic_optimization:
            # The trainer counts no step, and the samples are behind: it was left out, or is a part of another one.
            due = True
            if not self._without_step:
                self._without_step = True
                log.warning(
                    "batch %d has ended without an optimizer's step. Gradients that are accumulated over batches are "
                    "in no checkpoint: for larger steps, have a larger global_batch",
                    batch_idx,
                )
        if not due:
            return  # gradients are accumulated
        self._steps = trainer.global_step
        loss = torch.stack(self._losses).sum() if self._losses else None
        self._losses.clear()
        trainer._epochs.stepped(loss, trainer.callback_metrics)

    def on_train_end(self, trainer: Any, pl_module: LightningModule) -> None:
        trainer._epochs.settle()
        self._run.save(reason="final")


class _Progress:
    """What the trainer's loops know beside the model: how far they are, and the state of its callbacks."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._loop = trainer, trainer.fit_loop.epoch_loop
        self._loaded = 0
        self._rebuilt: list[Any] = []  # callbacks that have been loaded before all else
        self._shape = ModelShape(trainer.lightning_module, trainer.strategy.optimizers)

    def _callbacks(self) -> dict[str, Any]:
        ours = _Reporting, _Settling
        return {one.state_key: one for one in self._trainer.callbacks if not isinstance(one, ours)}

    def _pruning(self) -> list[Any]:
        return [one for one in self._trainer.callbacks if isinstance(one, callbacks.ModelPruning)]

    def rebuild(self, kept: dict[str, Any] | None) -> None:
        """Have model and optimizers the shape that callbacks gave them: by their own way first, where they have one."""
        for key, one in self._callbacks().items():
            if kept and isinstance(one, callbacks.BaseFinetuning) and key in kept["callbacks"]:
                one.load_state_dict(kept["callbacks"][key])
                one.on_fit_start(self._trainer, self._trainer.lightning_module)
                self._rebuilt.append(one)
        if kept and "shape" in kept:  # saved before that was kept
            self._shape.load_state_dict(kept["shape"])

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self._trainer.global_step,
            "batches": self._loop.batch_progress.total.ready,
            "logged": self._loop._batches_that_stepped,
            "callbacks": {key: one.state_dict() for key, one in self._callbacks().items()},
            "data": None if self._trainer.datamodule is None else self._trainer.datamodule.state_dict(),
            "stopped": self._trainer.should_stop,
            "loaded": self._trainer.fit_loop._last_train_dl_reload_epoch,
            "shape": self._shape.state_dict(),
            "first_weights": [lottery.shared(one) for one in self._pruning()],
        }

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        loop = self._loop
        for one, numbers in zip(self._pruning(), kept.get("first_weights", ()), strict=False):
            lottery.share(one, numbers)
        if self._trainer.lightning_module.automatic_optimization:
            stand(loop.automatic_optimization.optim_progress.optimizer.step, kept["steps"])
        else:
            stand(loop.manual_optimization.optim_step_progress, kept["steps"])
        stand(loop.batch_progress, kept["batches"])
        loop._batches_that_stepped = kept["logged"]
        self._trainer.should_stop = kept.get("stopped", False)  # early: somebody had seen enough
        self._loaded = kept.get("loaded", 0)
        for key, one in self._callbacks().items():
            if key in kept["callbacks"] and not any(one is each for each in self._rebuilt):
                one.load_state_dict(kept["callbacks"][key])
        if kept.get("data") and self._trainer.datamodule is not None:
            self._trainer.datamodule.load_state_dict(kept["data"])

    def load_data(self) -> None:
        """As it was loaded last, where the trainer loads it anew from time to time."""
        loop = self._trainer.fit_loop
        if self._trainer.reload_dataloaders_every_n_epochs and self._loaded:
            stand(loop.epoch_progress, self._loaded)
            loop._combined_loader = None
            loop.setup_data()


def _held_back(trainer: Any) -> list[Any]:
    """Callbacks that thaw layers by the epoch and have done so in this one: as Lightning's own resuming, within an
    epoch, they are not told that it begins. (Others are: they may make there what they need for an epoch.)
    """
    held = [one for one in trainer.callbacks if isinstance(one, callbacks.BaseFinetuning)]
    for one in held:
        one.on_train_epoch_start = _nothing
    return held


def _nothing(*_: Any) -> None:
    """Done already."""


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
