"""Elastic training with Lightning's `Trainer`:

    from airflow_elastic.frameworks.lightning import ElasticTrainer

    trainer = ElasticTrainer(global_batch=64, max_epochs=3)
    trainer.fit(module, loader)
    trainer.finish()

The loader is a DataLoader as usual: an argument, or the one of the module or of a data module.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from airflow_elastic.frameworks import lightning_pruning, missing
from airflow_elastic.frameworks.epochs import Epochs, most_at_once
from airflow_elastic.frameworks.lightning_counts import add, stand, steps_of_fit
from airflow_elastic.frameworks.lightning_hooks import check_hooks
from airflow_elastic.frameworks.lightning_passes import Passes
from airflow_elastic.runtime.model_changes.callback_changes import ModelShape
from airflow_elastic.runtime.session.begin import joined
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.validation import number_in, procs_count

try:
    from lightning.pytorch import Callback, LightningModule, Trainer, callbacks
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment
except ImportError as error:
    raise missing("lightning", "lightning") from error

log = logging.getLogger(__name__)

#: Arguments of the trainer that the run sets, and why.
_OURS = {
    "devices": "as many as the worker has ranks",
    "num_nodes": "as many as there are workers",
    "accumulate_grad_batches": "it follows from global_batch, the loader's batch_size and the number of ranks",
    "limit_train_batches": "an epoch has all samples; give the loader a smaller data set, or set max_steps",
    "overfit_batches": "an epoch has all samples; give the loader a smaller data set",
}


class ElasticTrainer(Trainer):  # type: ignore[misc]
    """An elastic `lightning.pytorch.Trainer`.

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
        seed: seed of the order of samples. Default: 0.
        options: arguments of the trainer. Lightning's own checkpoints are off unless `enable_checkpointing` is True.

    Attributes:
        run: this rank's session.

    Raises:
        InvalidInput: an option that the run sets is given.
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
        """Train, from the run's newest checkpoint. Each call is a phase of the run; a restart skips complete phases.

        Args:
            model: the trainer's argument.
            train_dataloaders: a DataLoader, or a data module. Its `batch_size` is the most samples that a device takes
                at once. The run itself chooses the samples and their order.
            others: further arguments of the trainer.
            options: further arguments of the trainer.

        Raises:
            InvalidInput: a checkpoint of Lightning is given; or a callback averages weights, which would begin again
                with each attempt.
        """
        if [*others[2:3], options.get("ckpt_path")][0] is not None:
            raise InvalidInput(
                "ckpt_path: given; allowed: none, because the run goes on from its own checkpoints. To begin with "
                "other weights, call elastic.load_weights(file, module) before"
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
                self._epochs.settle()  # data is loaded again: report the last step with the data before
            self._epochs = _Epochs(
                self.run,
                loader,
                global_batch=self._global_batch,
                micro_batch=most_at_once(loader),
                seed=self._seed,
            )
            self._epochs.on_end = self._stop
            self.accumulate_grad_batches = self._epochs.pieces
            return self._epochs

        return ours

    def _stop(self) -> None:
        self.should_stop = True

    def finish(self, **metrics: float) -> None:
        """End the training after all evaluations, and report the results. All ranks call this together.

        Args:
            metrics: results, for example those of `validate`. (`callback_metrics` does not have the numbers of a
                training that had ended before this attempt began.)
        """
        self.run.finish(**metrics)


class _Epochs(Epochs):
    """Has the length of a whole epoch while the trainer loads it, which computes validation and end from it.

    Attributes:
        begun: whether the trainer has done that. From then on, the length is the rest of the epoch.
        on_first: is called before the first batch. At this point the trainer has reset its count of batches, and the
            batches that are done in this epoch must be added.
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


class _Settling(Callback):  # type: ignore[misc]
    """The first callback: it reports the last step of an epoch before other callbacks begin the next epoch."""

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            trainer._passes.set_up()

    def on_train_epoch_start(self, trainer: Any, pl_module: LightningModule) -> None:
        trainer._epochs.settle()
        if trainer.run.stopping:
            # Leaves the trainer's loop: other callbacks may not expect an epoch without data.
            raise StopIteration


class _Reporting(Callback):  # type: ignore[misc]
    """Restores before the first step, and reports each step to the run."""

    def __init__(self, run: Session) -> None:
        self._run = run
        self._weight = 1.0
        self._losses: list[torch.Tensor] = []  # of the pieces of the step in flight
        self._steps = 0  # optimizer steps, as the trainer counts them
        self._without_step = False  # the warning about a batch without a step
        self._held: list[Any] = []  # callbacks that must not begin an epoch twice

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            check_hooks([*trainer.callbacks, pl_module], pl_module)

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        trainer._passes.begin()
        schedules = {
            f"schedule{number}": config.scheduler
            for number, config in enumerate(trainer.lr_scheduler_configs)
        }
        before = trainer.fit_loop.epoch_progress.current.completed  # epochs of earlier calls of `fit`
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
        trainer.should_stop = trainer.should_stop or self._run.stopping
        self._held = _held_back(trainer) if trainer._epochs.given else []
        stand(trainer.fit_loop.epoch_progress, before + int(trainer._epochs.behind))
        self._steps = trainer.global_step

    def on_train_epoch_start(self, trainer: Any, pl_module: LightningModule) -> None:
        while self._held:
            del self._held.pop().on_train_epoch_start
        if not trainer._epochs.begun:
            trainer._epochs.begun = True
            iter(trainer.fit_loop._data_fetcher)  # reads the length again, which now is the rest of the epoch
            behind = trainer.fit_loop.epoch_loop.batch_progress.current
            trainer._epochs.on_first = partial(add, behind, trainer._epochs.given)

    def on_train_batch_start(
        self, trainer: Any, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._weight = trainer._epochs.weight()

    def on_before_backward(self, trainer: Any, pl_module: LightningModule, loss: torch.Tensor) -> None:
        weight, scaler = self._weight, getattr(trainer.precision_plugin, "scaler", None)
        told = loss.detach() * weight
        if scaler is not None and scaler.is_enabled():  # this loss is scaled already
            told /= scaler.scale(torch.ones((), device=loss.device))
        self._losses.append(told)
        if weight != 1.0:
            loss.register_hook(lambda gradient: gradient * weight)  # type: ignore[no-untyped-call]

    def on_train_batch_end(
        self, trainer: Any, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        due = trainer.global_step != self._steps
        if not due and self._run.step_due and not pl_module.automatic_optimization:
            # The samples are used, but the trainer has counted no step: the module has skipped or postponed it.
            due = True
            if not self._without_step:
                self._without_step = True
                log.warning(
                    "batch %d has ended without an optimizer step. Checkpoints do not have gradients that are "
                    "accumulated over batches: for larger steps, use a larger global_batch",
                    batch_idx,
                )
        if not due:
            return  # gradients are accumulated
        self._steps = trainer.global_step
        loss = torch.stack(self._losses).sum() if self._losses else None
        self._losses.clear()
        trainer._epochs.stepped(loss, trainer.callback_metrics)

    def on_validation_end(self, trainer: Any, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            # The metrics are reported with the next step, but the trainer asks now whether another epoch begins.
            # Not `callback_metrics`, which also has those of the training.
            found = trainer.fit_loop.epoch_loop.val_loop._results.metrics(False)["callback"]
            trainer.should_stop = self._run.foresees_end(found) or trainer.should_stop

    def on_train_end(self, trainer: Any, pl_module: LightningModule) -> None:
        trainer._epochs.settle()
        self._run.save(reason="final")


class _Progress:
    """State of the trainer's loops beside the model: their counters, and the state of its callbacks."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._loop = trainer, trainer.fit_loop.epoch_loop
        self._loaded = 0
        self._rebuilt: list[Any] = []  # callbacks whose state was loaded by `rebuild`
        self._shape = ModelShape(trainer.lightning_module, trainer.strategy.optimizers)

    def _callbacks(self) -> dict[str, Any]:
        ours = _Reporting, _Settling
        return {one.state_key: one for one in self._trainer.callbacks if not isinstance(one, ours)}

    def _pruning(self) -> list[Any]:
        return [one for one in self._trainer.callbacks if isinstance(one, callbacks.ModelPruning)]

    def rebuild(self, kept: dict[str, Any] | None) -> None:
        """Give model and optimizers the shape that callbacks gave them; finetuning callbacks do this themselves."""
        for key, one in self._callbacks().items():
            if kept and isinstance(one, callbacks.BaseFinetuning) and key in kept["callbacks"]:
                one.load_state_dict(kept["callbacks"][key])
                one.on_fit_start(self._trainer, self._trainer.lightning_module)
                self._rebuilt.append(one)
        if kept and "shape" in kept:  # checkpoints of earlier releases do not have it
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
            "first_weights": [lightning_pruning.shared(one) for one in self._pruning()],
        }

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        loop = self._loop
        for one, numbers in zip(self._pruning(), kept.get("first_weights", ()), strict=False):
            lightning_pruning.share(one, numbers)
        if self._trainer.lightning_module.automatic_optimization:
            stand(loop.automatic_optimization.optim_progress.optimizer.step, kept["steps"])
        else:
            stand(loop.manual_optimization.optim_step_progress, kept["steps"])
        stand(loop.batch_progress, kept["batches"])
        loop._batches_that_stepped = kept["logged"]
        self._trainer.should_stop = kept.get("stopped", False)  # early stopping
        self._loaded = kept.get("loaded", 0)
        for key, one in self._callbacks().items():
            if key in kept["callbacks"] and not any(one is each for each in self._rebuilt):
                one.load_state_dict(kept["callbacks"][key])
        if kept.get("data") and self._trainer.datamodule is not None:
            self._trainer.datamodule.load_state_dict(kept["data"])

    def load_data(self) -> None:
        """Load the data of the right epoch, if the trainer reloads it every n epochs."""
        loop = self._trainer.fit_loop
        if self._trainer.reload_dataloaders_every_n_epochs and self._loaded:
            stand(loop.epoch_progress, self._loaded)
            loop._combined_loader = None
            loop.setup_data()


def _held_back(trainer: Any) -> list[Any]:
    """Skip `on_train_epoch_start` of finetuning callbacks, which have already unfrozen their layers in this epoch.

    Lightning does the same when it resumes within an epoch. Other callbacks are called: they may need it to prepare
    for the epoch.
    """
    held = [one for one in trainer.callbacks if isinstance(one, callbacks.BaseFinetuning)]
    for one in held:
        one.on_train_epoch_start = _nothing
    return held


def _nothing(*_: Any) -> None:
    """Do nothing."""


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
