"""Elastic training with Hugging Face's `Trainer`:

    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    trainer = ElasticTrainer(global_batch=64, model=model, args=TrainingArguments(...), train_dataset=data)
    trainer.train()
    trainer.finish(**trainer.evaluate())

Your own trainer class, or one of another library, becomes elastic with `class Mine(ElasticTraining, Theirs)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from airflow_elastic.frameworks import missing
from airflow_elastic.frameworks.epochs import Epochs
from airflow_elastic.runtime.data.sampler import count_pieces
from airflow_elastic.runtime.model_changes.callback_changes import ModelShape
from airflow_elastic.runtime.session.begin import joined
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.errors import InvalidInput

try:
    from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
    from transformers.trainer_callback import ExportableState
    from transformers.trainer_utils import SaveStrategy
except ImportError as error:
    raise missing("transformers", "huggingface") from error

#: The label of a token that the loss ignores.
_IGNORED = -100

#: Fields of the trainer's state that a checkpoint must have, because the start of a training does not set them.
_KEPT = (
    "epoch",
    "global_step",
    "log_history",
    "best_metric",
    "best_global_step",
    "total_flos",
    "num_input_tokens_seen",
)


class ElasticTraining:
    """Makes a trainer elastic: a mixin that stands before the trainer in the bases of a class.

    What its calls do beside the first `train`:

    - In a second `train` epochs, steps and the schedule begin again, and the optimizer keeps its state.
    - `evaluate` and `predict` leave no trace except random numbers drawn. Their results before a training are not
      metrics of its steps.
    - `eval_on_start` is done once, at the beginning of the training.
    - `auto_find_batch_size` is refused: one rank would begin again while the others wait for it.
    - `hyperparameter_search` is refused: begin a run for each trial.

    Args:
        model: the trainer's argument.
        args: the trainer's argument. `per_device_train_batch_size` is the most samples that a device takes at once.
            The number of accumulated batches follows from it and the number of ranks.
        others: further arguments of the trainer.
        global_batch: samples of one optimizer step, all ranks together.
        options: further arguments of the trainer.

    Attributes:
        run: this rank's session.

    Raises:
        InvalidInput: an option of the trainer cannot be used in an elastic run.
    """

    def __init__(
        self, model: Any = None, args: Any = None, *others: Any, global_batch: int, **options: Any
    ) -> None:
        args = args if args is not None else TrainingArguments()
        if args.load_best_model_at_end:
            raise InvalidInput(
                "load_best_model_at_end: given True; allowed: False, because the run keeps the checkpoints. Let it "
                "keep the best one with checkpoint.keep_best, e.g. `min eval_loss`"
            )
        _check_batch_size(args)
        args.save_strategy = SaveStrategy.NO
        args.average_tokens_across_devices = True  # else a token counts more on a rank with fewer tokens
        world_size = args.world_size  # this property creates the process group
        self.run: Session = joined()
        if world_size != self.run.world_size:
            raise InvalidInput(
                f"args: the trainer sees {world_size} of {self.run.world_size} ranks: each would train by itself. "
                "Without GPUs, use TrainingArguments(use_cpu=True)"
            )
        share, most = -(-global_batch // self.run.world_size), args.per_device_train_batch_size
        args.gradient_accumulation_steps = count_pieces(share, most)
        self._batches = {"global_batch": global_batch, "micro_batch": most}
        self._epochs: Epochs | None = None
        self._by_tokens: bool | None = None  # whether the loss is the mean over tokens; None: not known yet
        self._stopped = False  # whether training was stopped early, in an earlier attempt
        self._weight = 1.0
        self._losses: list[torch.Tensor] = []  # of the pieces of the step in flight
        super().__init__(model, args, *others, **options)  # type: ignore[call-arg]
        trainer: Any = self
        # The value of the trainer's own class; earlier releases of transformers do not have it.
        self._scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
        trainer.callback_handler.callbacks.insert(0, _Settling(trainer))
        trainer.add_callback(_Reporting(trainer))
        # Not in `compute_loss`, because user's trainers override that.
        backward = trainer.accelerator.backward
        trainer.accelerator.backward = lambda loss, **more: backward(loss * self._weight, **more)

    def train(self, resume_from_checkpoint: Any = None, *others: Any, **options: Any) -> Any:
        """Train, from the run's newest checkpoint. Each call is a phase of the run; a restart skips complete phases.

        Raises:
            InvalidInput: a checkpoint of the trainer is given.
        """
        if resume_from_checkpoint:
            raise InvalidInput(
                f"resume_from_checkpoint: given {resume_from_checkpoint!r}; allowed: none, because the run goes on "
                "from its own checkpoints by itself. To begin with other weights, load them into the model before"
            )
        _check_batch_size(self.args)  # type: ignore[attr-defined]
        with self.run.training():
            self._stopped = False
            return super().train(None, *others, **options)  # type: ignore[misc]

    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        """Not supported within a run.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput(
            "hyperparameter_search is not allowed within a run, because no checkpoint has the state of its study. "
            "Begin a run for each trial, as a mapped ElasticTrainOperator does, and choose among their results"
        )

    def get_train_dataloader(self) -> Epochs:
        """The trainer's data, in an order that is the same for any number of ranks."""
        theirs = super().get_train_dataloader()  # type: ignore[misc]
        args: TrainingArguments = self.args  # type: ignore[attr-defined]
        seed = args.seed if args.data_seed is None else args.data_seed
        self._epochs = Epochs(self.run, theirs, seed=seed, blank=self._without_tokens, **self._batches)
        self._epochs.on_end = self._stop
        return self._epochs

    def _stop(self) -> None:
        trainer: Any = self
        trainer.control.should_training_stop = True

    def _without_tokens(self, batch: Any) -> Any:
        """A batch with weight 0 without labels, if the loss is divided by tokens: the trainer counts labels."""
        if self._by_tokens and isinstance(batch, Mapping) and torch.is_tensor(batch.get("labels")):
            return {**batch, "labels": torch.full_like(batch["labels"], _IGNORED)}
        return batch

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """The trainer's step, with the loss weighted by the batch's part of the global batch."""
        weight = self._epochs.weight() if self._epochs else 1.0
        if self._by_tokens is None and num_items_in_batch is not None:
            self._by_tokens = self._divides(inputs, num_items_in_batch)
        # A `compute_loss_func` that gets no number of tokens has not scaled the loss, but the trainer assumes it.
        unsaid = self._by_tokens is None and self._scaled is None
        self.loss_is_scaled_for_ga = False if unsaid or self._by_tokens is False else self._scaled
        if not self._by_tokens:
            num_items_in_batch = None
        # A loss that is divided by the tokens of all ranks needs no weight, except 0 for a batch that only fills up.
        self._weight = weight if num_items_in_batch is None else float(weight > 0)
        try:
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        finally:
            self._weight = 1.0
        self._losses.append(loss)
        return loss

    def prediction_step(self, *given: Any, **options: Any) -> Any:
        """The trainer's step of an evaluation, with the loss of this rank's batch alone.

        If a model ignores the number of tokens of all ranks, the trainer multiplies the loss by the number of ranks.
        Then `keep_best` would compare wrong numbers.
        """
        args: TrainingArguments = self.args  # type: ignore[attr-defined]
        args.average_tokens_across_devices = bool(
            self._by_tokens
        )  # correct only if the loss is divided by tokens
        try:
            return super().prediction_step(*given, **options)  # type: ignore[misc]
        finally:
            args.average_tokens_across_devices = True

    def _divides(self, inputs: dict[str, Any], tokens: Any) -> bool | None:
        """Whether the model divides the loss by the number of tokens that it gets, as the trainer assumes.

        Many models accept that number and ignore it. Their loss is a mean, and the trainer would multiply it by the
        number of ranks and of batches. So the loss is computed for two numbers of tokens, in eval mode and without
        gradients. All ranks do this together, because a rank without labels in its piece cannot find out.

        Returns:
            None if no rank can find out with this batch.
        """
        trainer: Any = self
        trainer.model.eval()
        with torch.no_grad():
            losses = [
                trainer.compute_loss(
                    trainer.model, dict(trainer._prepare_inputs(inputs)), num_items_in_batch=number
                )
                for number in (tokens, tokens * 2)
            ]
        trainer.model.train()
        # [a rank has seen that it divides, a rank has seen that it does not]
        found = torch.zeros(2, device=losses[0].device)
        if all(torch.isfinite(loss) and loss != 0 for loss in losses):
            found[int(torch.isclose(*losses))] = 1.0
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        divides, does_not = found.tolist()
        return bool(divides) if divides or does_not else None

    def finish(self, **metrics: Any) -> None:
        """End the training after all evaluations, and report the results. All ranks call this together.

        Args:
            metrics: results, for example those of `evaluate`. Values that are not numbers are left out.
        """
        self.run.finish(**_numbers(metrics))


class ElasticTrainer(ElasticTraining, Trainer):  # type: ignore[misc]
    """An elastic `transformers.Trainer`."""


class _Settling(TrainerCallback):  # type: ignore[misc]
    """The first callback: it reports the last step of an epoch before other callbacks begin the next epoch."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer._epochs.settle()


class _Reporting(TrainerCallback):  # type: ignore[misc]
    """Restores before the first step, and reports each step to the run."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._run = trainer, trainer.run
        self._metrics: dict[str, float] = {}
        self._begins = False  # the user's `eval_on_start`

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        trainer, run = self._trainer, self._run
        self._metrics.clear()  # metrics of an earlier training
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # without Accelerate's wrapper
        progress = _Progress(trainer, ModelShape(trainer.model, [optimizer]))
        others = {"schedule": trainer.lr_scheduler, "progress": progress}
        others["scaler"] = trainer.accelerator.scaler  # None if training no longer uses float16
        rebuild = lambda resumed: progress.rebuild(run.peek("progress"))  # noqa: E731
        run.restore(trainer.model_wrapped, optimizer, rebuild=rebuild, **others)
        self._begins = args.eval_on_start
        args.eval_on_start = args.eval_on_start and not state.global_step  # only once in a run
        # The trainer's averages begin with the next step.
        trainer._globalstep_last_logged = trainer._initial_global_step = state.global_step
        if args.max_steps <= 0:  # the number of steps of an epoch may have changed
            state.max_steps = state.global_step + trainer._epochs.left(args.num_train_epochs)
        run.expect(state.max_steps)
        # The trainer itself checks this only after a step.
        trainer._epochs.over = trainer._stopped or run.stopping or state.global_step >= state.max_steps

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        state.epoch = self._trainer._epochs.behind  # the trainer counts only epochs of this attempt

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._trainer._epochs.over:  # an earlier attempt has logged and evaluated this epoch
            control.should_log = control.should_evaluate = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        epochs, losses = self._trainer._epochs, self._trainer._losses
        state.epoch = epochs.behind
        epochs.stepped(torch.stack(losses).sum(), self._metrics)
        losses.clear()

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        if self._run.foresees_end(_numbers(metrics or {})):
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any) -> None:
        self._metrics.update(_numbers(logs))  # the dict of `stepped`: the step is reported with these metrics
        self._metrics.pop("loss", None)  # each step reports it separately

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        args.eval_on_start = self._begins
        self._trainer._epochs.settle()
        self._run.save(reason="final")


class _Progress:
    """State of the trainer's loop beside the model: its position, its history, the state of its callbacks."""

    def __init__(self, trainer: Any, shape: ModelShape) -> None:
        self._trainer, self._shape = trainer, shape

    def rebuild(self, kept: dict[str, Any] | None) -> None:
        """Give model and optimizer the shape that callbacks had given them."""
        if kept and "shape" in kept:  # checkpoints of earlier releases do not have it
            self._shape.load_state_dict(kept["shape"])

    def _callbacks(self) -> dict[str, Any]:
        callbacks = self._trainer.callback_handler.callbacks
        return {type(one).__name__: one for one in callbacks if isinstance(one, ExportableState)}

    def state_dict(self) -> dict[str, Any]:
        state: TrainerState = self._trainer.state
        known = {field.name for field in fields(state)}
        return {
            "state": {name: getattr(state, name) for name in _KEPT if name in known},
            "callbacks": {name: one.state()["attributes"] for name, one in self._callbacks().items()},
            "by_tokens": self._trainer._by_tokens,
            "shape": self._shape.state_dict(),
            "stopped": self._trainer.control.should_training_stop and state.global_step < state.max_steps,
        }

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        for name, value in kept["state"].items():
            setattr(self._trainer.state, name, value)
        self._trainer._by_tokens, self._trainer._stopped = kept["by_tokens"], kept.get("stopped", False)
        for name, one in self._callbacks().items():
            vars(one).update(kept["callbacks"].get(name, {}))


def _check_batch_size(args: Any) -> None:
    """Raise InvalidInput if the trainer would search for a batch size."""
    if args.auto_find_batch_size:
        raise InvalidInput(
            "auto_find_batch_size: given True; allowed: False. It restarts training on one rank that runs out of "
            "memory, while the others wait, and it keeps the trained weights. Give "
            "per_device_train_batch_size, the most samples that a device takes at once: global_batch stays the same"
        )


def _numbers(words: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in words.items() if isinstance(value, int | float)}
