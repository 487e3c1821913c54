"""Hugging Face's `Trainer` as an elastic training:

    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    trainer = ElasticTrainer(global_batch=64, model=model, args=TrainingArguments(...), train_dataset=data)
    trainer.train()
    trainer.finish(**trainer.evaluate())

A trainer of one's own, or of another library, becomes one with `class Mine(ElasticTraining, Theirs)`.
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
from airflow_elastic.runtime.session.session import Session, joined
from airflow_elastic.spec.errors import InvalidInput

try:
    from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
    from transformers.trainer_callback import ExportableState
    from transformers.trainer_utils import SaveStrategy
except ImportError as error:
    raise missing("transformers", "huggingface") from error

#: The label of a token that is not to be learned.
_IGNORED = -100

#: Of the trainer's state, what is not given anew with each start.
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
    """Makes a trainer elastic: to be named before it among the bases of a class.

    What its calls do beside the first `train`:

    - In a second `train` epochs, steps and the schedule begin again, and the optimizer keeps its state.
    - `evaluate` and `predict` leave no trace except random numbers drawn. Their results before a training are not
      metrics of its steps.
    - `eval_on_start` is done once, at the beginning of the training.
    - `auto_find_batch_size` is refused: one rank would begin again while the others wait for it.
    - `hyperparameter_search` is refused: begin a run for each trial.

    Args:
        model: as the trainer's.
        args: as the trainer's; `per_device_train_batch_size` is the most samples that a device takes at once, and how
            many batches gradients are accumulated of follows from that and the number of ranks.
        others: the trainer's further arguments.
        global_batch: samples of one optimizer step, all ranks together.
        options: the trainer's further arguments.

    Attributes:
        run: this rank's session.
    """

    def __init__(
        self, model: Any = None, args: Any = None, *others: Any, global_batch: int, **options: Any
    ) -> None:
        args = args if args is not None else TrainingArguments()
        if args.load_best_model_at_end:
            raise InvalidInput(
                "load_best_model_at_end: given True; allowed: False, as the run keeps the checkpoints. Have it keep "
                "the best one with checkpoint.keep_best, e.g. `min eval_loss`"
            )
        _check_batch_size(args)
        args.save_strategy = SaveStrategy.NO
        args.average_tokens_across_devices = True  # or a token would count more on a rank that has fewer
        world_size = args.world_size  # as the arguments make the process group
        self.run: Session = joined()
        if world_size != self.run.world_size:
            raise InvalidInput(
                f"args: the trainer sees {world_size} of {self.run.world_size} ranks, and each would train by itself; "
                "where there are no GPUs, say TrainingArguments(use_cpu=True)"
            )
        share, most = -(-global_batch // self.run.world_size), args.per_device_train_batch_size
        args.gradient_accumulation_steps = count_pieces(share, most)
        self._batches = {"global_batch": global_batch, "micro_batch": most}
        self._epochs: Epochs | None = None
        self._by_tokens: bool | None = None  # whether the loss is the mean over tokens; None: not known yet
        self._stopped = False  # early, before this attempt
        self._weight = 1.0
        self._losses: list[torch.Tensor] = []  # of the pieces of the step in flight
        super().__init__(model, args, *others, **options)  # type: ignore[call-arg]
        trainer: Any = self
        # As a trainer of one's own may say; earlier releases do not ask.
        self._scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
        trainer.callback_handler.callbacks.insert(0, _Settling(trainer))
        trainer.add_callback(_Reporting(trainer))
        # Here, and not in `compute_loss`, which is what a trainer of one's own overrides.
        backward = trainer.accelerator.backward
        trainer.accelerator.backward = lambda loss, **more: backward(loss * self._weight, **more)

    def train(self, resume_from_checkpoint: Any = None, *others: Any, **options: Any) -> Any:
        """As the trainer's, from where the run stands. Each call is a phase of the run: a restart passes by those that
        are complete.

        Raises:
            InvalidInput: a checkpoint of the trainer's own is given.
        """
        if resume_from_checkpoint:
            raise InvalidInput(
                f"resume_from_checkpoint: given {resume_from_checkpoint!r}; allowed: none, as the run goes on from its "
                "own checkpoints without being told. To begin with other weights, load them into the model before"
            )
        _check_batch_size(self.args)  # type: ignore[attr-defined]
        with self.run.training():
            self._stopped = False
            return super().train(None, *others, **options)  # type: ignore[misc]

    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        """Not within a run.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput(
            "hyperparameter_search: given; allowed: none, as its trials are trainings that do not count, chosen by a "
            "study which no checkpoint has. Begin a run for each trial, as a mapped ElasticTrainOperator does, and "
            "choose among their results"
        )

    def get_train_dataloader(self) -> Epochs:
        """The trainer's own data, collated and fetched as it would, in an order that no number of ranks changes."""
        theirs = super().get_train_dataloader()  # type: ignore[misc]
        args: TrainingArguments = self.args  # type: ignore[attr-defined]
        seed = args.seed if args.data_seed is None else args.data_seed
        self._epochs = Epochs(self.run, theirs, seed=seed, blank=self._without_tokens, **self._batches)
        return self._epochs

    def _without_tokens(self, batch: Any) -> Any:
        """A batch that counts nothing, where it is tokens that count: the trainer would add them up."""
        if self._by_tokens and isinstance(batch, Mapping) and torch.is_tensor(batch.get("labels")):
            return {**batch, "labels": torch.full_like(batch["labels"], _IGNORED)}
        return batch

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """The trainer's, with a batch that counts what it is to the global batch."""
        weight = self._epochs.weight() if self._epochs else 1.0
        if self._by_tokens is None and num_items_in_batch is not None:
            self._by_tokens = self._divides(inputs, num_items_in_batch)
        # By a `compute_loss_func` that is told of no tokens it has not been scaled, though the trainer thinks so.
        unsaid = self._by_tokens is None and self._scaled is None
        self.loss_is_scaled_for_ga = False if unsaid or self._by_tokens is False else self._scaled
        if not self._by_tokens:
            num_items_in_batch = None
        # A loss that is divided by the tokens of all ranks counts right by itself.
        self._weight = weight if num_items_in_batch is None else float(weight > 0)
        try:
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        finally:
            self._weight = 1.0
        self._losses.append(loss)
        return loss

    def prediction_step(self, *given: Any, **options: Any) -> Any:
        """The trainer's, with the loss of this rank's batch by itself.

        Where a model takes the tokens of all ranks and does not heed them, the trainer has what is measured grow with
        the number of ranks, and the best checkpoint is found by it.
        """
        args: TrainingArguments = self.args  # type: ignore[attr-defined]
        args.average_tokens_across_devices = bool(self._by_tokens)  # there it counts right
        try:
            return super().prediction_step(*given, **options)  # type: ignore[misc]
        finally:
            args.average_tokens_across_devices = True

    def _divides(self, inputs: dict[str, Any], tokens: Any) -> bool | None:
        """Whether the loss is divided by the number of tokens that it is told, as the trainer believes of most models.

        Many take that number and do not heed it: their loss is a mean, and the trainer would let it grow with the
        number of ranks and of batches. Tried without a gradient, and without chance; by all ranks together, as one
        whose piece has nothing to learn from cannot know. None: no rank can, ask again.
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
        # Whether any rank has seen that it is, and that it is not.
        found = torch.zeros(2, device=losses[0].device)
        if all(torch.isfinite(loss) and loss != 0 for loss in losses):
            found[int(torch.isclose(*losses))] = 1.0
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        divides, does_not = found.tolist()
        return bool(divides) if divides or does_not else None

    def finish(self, **metrics: Any) -> None:
        """Training, and what was to be measured, is complete: hand over the results. All ranks call this together.

        Args:
            metrics: what `evaluate` returns, for example; what is no number in it is left out.
        """
        self.run.finish(**_numbers(metrics))


class ElasticTrainer(ElasticTraining, Trainer):  # type: ignore[misc]
    """`transformers.Trainer`, elastic."""


class _Settling(TrainerCallback):  # type: ignore[misc]
    """The first one: what was done before an epoch counts before anybody begins the next."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer._epochs.settle()


class _Reporting(TrainerCallback):  # type: ignore[misc]
    """Restores before the first step, and tells the run of each."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._run = trainer, trainer.run
        self._metrics: dict[str, float] = {}
        self._begins = False  # with an evaluation

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        trainer, run = self._trainer, self._run
        self._metrics.clear()  # what was measured before is no number of this training
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # not Accelerate's cover of it
        progress = _Progress(trainer, ModelShape(trainer.model, [optimizer]))
        others = {"schedule": trainer.lr_scheduler, "progress": progress}
        others["scaler"] = trainer.accelerator.scaler  # none, where what was trained in float16 is no more
        rebuild = lambda resumed: progress.rebuild(run.peek("progress"))  # noqa: E731
        run.restore(trainer.model_wrapped, optimizer, rebuild=rebuild, **others)
        self._begins = args.eval_on_start
        args.eval_on_start = args.eval_on_start and not state.global_step  # once
        # What is averaged from here on is of the steps from here on.
        trainer._globalstep_last_logged = trainer._initial_global_step = state.global_step
        if args.max_steps <= 0:  # an epoch may have more steps than those before had, or fewer
            state.max_steps = state.global_step + trainer._epochs.left(args.num_train_epochs)
        run.expect(state.max_steps)
        # The trainer itself looks after a step only.
        trainer._epochs.over = trainer._stopped or state.global_step >= state.max_steps

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        state.epoch = self._trainer._epochs.behind  # the trainer counts those of this attempt

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._trainer._epochs.over:  # all that belongs to this epoch was done before
            control.should_log = control.should_evaluate = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        epochs, losses = self._trainer._epochs, self._trainer._losses
        state.epoch = epochs.behind
        epochs.stepped(torch.stack(losses).sum(), self._metrics)
        losses.clear()

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any) -> None:
        self._metrics.update(_numbers(logs))  # the same: what is measured after a step is told with that step
        self._metrics.pop("loss", None)  # is told with each step

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        args.eval_on_start = self._begins
        self._trainer._epochs.settle()
        self._run.save(reason="final")


class _Progress:
    """What the trainer's loop knows beside the model: its place, its history, the state of its callbacks."""

    def __init__(self, trainer: Any, shape: ModelShape) -> None:
        self._trainer, self._shape = trainer, shape

    def rebuild(self, kept: dict[str, Any] | None) -> None:
        """Have model and optimizer the shape that callbacks had given them."""
        if kept and "shape" in kept:  # saved before that was kept
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
    """Raises InvalidInput where the trainer would look for one itself."""
    if args.auto_find_batch_size:
        raise InvalidInput(
            "auto_find_batch_size: given True; allowed: False, as it begins the training anew on the rank that runs "
            "out of memory, while the others wait for it, and the weights stay as they have been trained. Give "
            "per_device_train_batch_size, the most samples that a device takes at once: global_batch stays what it is"
        )


def _numbers(words: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in words.items() if isinstance(value, int | float)}
