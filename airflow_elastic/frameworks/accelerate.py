"""Elastic training in your own loop with Hugging Face's Accelerate:

    from airflow_elastic.frameworks.accelerate import ElasticRun

    run = ElasticRun(accelerator)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    run.restore(model, optimizer, schedule)
    for epoch in run.epochs(3):
        for inputs, targets in run.loader(loader, global_batch=64):
            with accelerator.accumulate(model):
                loss = loss_of(model(inputs), targets)
                run.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            run.step()
        print(f"epoch {epoch}: accuracy {accuracy_of(model, held_out)}")
    run.finish()

Do not prepare the loader: the run gives each rank its share of the samples.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch

from airflow_elastic.frameworks import missing
from airflow_elastic.frameworks.epochs import Epochs, most_at_once
from airflow_elastic.runtime.session.begin import init
from airflow_elastic.runtime.session.phases import Phase
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.checkpoints.resumed import Resumed
from airflow_elastic.spec.errors import InvalidInput

try:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler
    from accelerate.utils import send_to_device
except ImportError as error:
    raise missing("accelerate", "accelerate") from error


log = logging.getLogger(__name__)


class ElasticRun:
    """One rank of a run whose model and optimizers an `Accelerator` has prepared.

    Args:
        accelerator: the accelerator of this process.

    Attributes:
        session: this rank's session, from `airflow_elastic.runtime.init`.

    Raises:
        InvalidInput: the accelerator has another number of ranks than the run.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.session: Session = init()
        if accelerator.num_processes != self.session.world_size:
            raise InvalidInput(
                f"accelerator: given one of {accelerator.num_processes} of {self.session.world_size} ranks: each "
                "would train by itself. Without GPUs, use Accelerator(cpu=True)"
            )
        self._weight = 1.0
        self._losses: list[torch.Tensor] = []  # of the pieces of the step in flight
        self._told = False  # the warning about a step without `backward`

    def restore(self, model: torch.nn.Module, *prepared: Any, **others: Any) -> int:
        """Load the newest verified checkpoint. From then on, checkpoints have the state of these objects.

        Args:
            model: the model that `prepare` has returned.
            prepared: optimizers and schedulers, prepared or not.
            others: other objects with `state_dict` and `load_state_dict`.

        Returns:
            The step that training goes on from; 0 without a checkpoint.
        """
        optimizers = [one for one in prepared if isinstance(one, torch.optim.Optimizer)]
        schedules = [one for one in prepared if not isinstance(one, torch.optim.Optimizer)]
        for one in schedules:
            if isinstance(one, AcceleratedScheduler):
                # The global batch is the same for any number of ranks, so each step is one step of the schedule.
                one.split_batches = True
        named = {f"schedule{number}": one for number, one in enumerate(schedules)}
        scaler = {"scaler": self._accelerator.scaler}  # None if training no longer uses float16
        return self.session.restore(model, *map(_inner, optimizers), **{**scaler, **named, **others})

    def epochs(self, number: int) -> Iterator[int]:
        """Yield the remaining epochs of a training, from the current one on.

        Use it around a loop over `loader`, for work that is done once an epoch.

        Args:
            number: number of epochs of the whole training.

        Raises:
            InvalidInput: another such loop has not ended.
        """
        return self.session.epochs(number)

    def loader(
        self,
        loader: Any,
        *,
        global_batch: int,
        epochs: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> Iterator[Any]:
        """Yield this rank's batches, on its device, from the current position to the end of the last epoch.

        The accelerator accumulates gradients over all batches of a rank's share of the global batch.

        Args:
            loader: a DataLoader that was not prepared. Its `batch_size` is the most samples that a device takes at
                once. The run itself chooses the samples and their order.
            global_batch: samples of one optimizer step, all ranks together.
            epochs: number of epochs of the whole training. Leave it out in a loop over `run.epochs`: there it is one
                epoch.
            seed: seed of the order of samples. Default: 0.
            shuffle: False keeps the order of the data set. Default: True.

        Raises:
            InvalidInput: a restart could not go on within data of this kind; or an epoch has ended without a call of
                `run.step`.
        """
        batches = Epochs(
            self.session,
            loader,
            global_batch=global_batch,
            micro_batch=most_at_once(loader),
            seed=seed,
            shuffle=shuffle,
        )
        self._accelerator.gradient_accumulation_steps = batches.pieces
        self._accelerator.step = (
            0  # counts batches; an earlier training may have accumulated another number of them
        )
        data, session = loader.dataset, self.session
        # It refuses data that it does not support, and is empty if no batch is left.
        rest = session.loader(data, global_batch=global_batch, epochs=epochs, seed=seed, shuffle=shuffle)
        until = epochs or 0
        if session.epoch is None:
            session.expect(until * -(-len(data) // global_batch))
        else:
            until = session.epoch + 1
        if batches.behind >= until:
            yield from rest
        while batches.behind < until:
            told, given = session.steps, False
            for batch in batches:
                self._weight, given = batches.weight(), True
                yield send_to_device(batch, self._accelerator.device)
            if not given:  # the phase is complete
                return
            if session.steps == told:
                raise InvalidInput(
                    "run.loader has ended an epoch, and no step was reported: call run.step() at the end of each batch"
                )

    def phase(self, name: str | None = None) -> Phase:
        """One training of several: `with run.phase("finetune") as phase:`. See `Session.phase`."""
        return self.session.phase(name)

    @contextlib.contextmanager
    def scratch(self, *prepared: Any) -> Iterator[None]:
        """A pass after which all state is as before, e.g. a search for a learning rate. See `Session.scratch`.

        Args:
            prepared: prepared objects that must also be reset and that were not passed to `restore`.
        """
        accelerator, mine = self._accelerator, (self._weight, self._losses)
        theirs = accelerator.step, accelerator.gradient_accumulation_steps
        synced = accelerator.gradient_state.sync_gradients
        scaler = [] if accelerator.scaler is None else [accelerator.scaler]
        self._losses = []
        try:
            with self.session.scratch(*(_inner(one) for one in prepared), *scaler):
                yield
        finally:
            self._weight, self._losses = mine
            accelerator.step, accelerator.gradient_accumulation_steps = theirs
            accelerator.gradient_state._set_sync_gradients(synced)

    def note(self, **values: Any) -> None:
        """Keep a few plain values with each later checkpoint, for `resumed.notes`."""
        self.session.note(**values)

    @property
    def resumed(self) -> Resumed | None:
        """Facts about the checkpoint that `restore` will load. None if the run begins."""
        return self.session.resumed

    @property
    def steps(self) -> int:
        """Optimizer steps done since the run began, over all attempts."""
        return self.session.steps

    @property
    def stopping(self) -> bool:
        """Whether the training ends early. See `Session.stopping`."""
        return self.session.stopping

    def report(self, **metrics: float) -> None:
        """Report numbers that were measured outside of a step. See `Session.report`."""
        self.session.report(**metrics)

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Like the accelerator's, with the loss weighted by this rank's part of the global batch."""
        loss = loss * self._weight
        self._losses.append(loss.detach() / self._accelerator.gradient_accumulation_steps)
        self._accelerator.backward(loss, **options)

    def step(self, **metrics: float) -> None:
        """Call this at the end of each batch. After the last batch of an accumulation it ends an optimizer step.

        It reports the step, saves when a checkpoint is due, and does not return when the run must stop.

        Args:
            metrics: numbers to report with the step.

        Raises:
            InvalidInput: gradients were not accumulated.
        """
        if self._accelerator.sync_gradients:
            if not self.session.step_due:
                raise InvalidInput(
                    "run.step: the optimizer has stepped after the first of several batches. Put forward, backward "
                    "and the optimizer's step into `with accelerator.accumulate(model):`"
                )
            if not self._losses and not self._told:
                self._told = True
                log.warning(
                    "a step without run.backward(loss): accelerator.backward(loss) does not weight batches of "
                    "different sizes, and the run gets no loss"
                )
            loss = torch.stack(self._losses).sum() if self._losses else None
            self._losses.clear()
            self.session.step(loss, **metrics)

    def finish(self, **metrics: float) -> None:
        """End the training: save the final checkpoint and report the results. All ranks call this together.

        Args:
            metrics: numbers that are the result of the training.
        """
        self.session.finish(**metrics)


def _inner(optimizer: Any) -> Any:
    """The optimizer without Accelerate's wrapper."""
    if isinstance(optimizer, AcceleratedOptimizer):
        return optimizer.optimizer
    return optimizer
