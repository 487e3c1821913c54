"""A loop of one's own with Hugging Face's Accelerate, as an elastic training:

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

The loader is not prepared: the run gives each rank its share of it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch

from airflow_elastic.frameworks import missing
from airflow_elastic.frameworks.epochs import Epochs, most_at_once
from airflow_elastic.runtime.session.phases import Phase
from airflow_elastic.runtime.session.session import Session, init
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
        accelerator: of this process.

    Attributes:
        session: this rank's session, as `airflow_elastic.runtime.init` gives it.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.session: Session = init()
        if accelerator.num_processes != self.session.world_size:
            raise InvalidInput(
                f"accelerator: given one of {accelerator.num_processes} of {self.session.world_size} ranks, where each "
                "would train by itself; where there are no GPUs, say Accelerator(cpu=True)"
            )
        self._weight = 1.0
        self._losses: list[torch.Tensor] = []  # of the pieces of the step in flight
        self._told = False  # of a step without `backward`

    def restore(self, model: torch.nn.Module, *prepared: Any, **others: Any) -> int:
        """Load the newest verified checkpoint; from then on the same objects are what is saved.

        Args:
            model: as `prepare` has returned it.
            prepared: optimizers and schedulers, as `prepare` has returned them or as they were.
            others: whatever else has `state_dict` and `load_state_dict`.

        Returns:
            The step that training goes on from; 0 where there is no checkpoint.
        """
        optimizers = [one for one in prepared if isinstance(one, torch.optim.Optimizer)]
        schedules = [one for one in prepared if not isinstance(one, torch.optim.Optimizer)]
        for one in schedules:
            if isinstance(one, AcceleratedScheduler):
                # A step of ours has the global batch of any number of ranks: the schedule goes on by one.
                one.split_batches = True
        named = {f"schedule{number}": one for number, one in enumerate(schedules)}
        scaler = {"scaler": self._accelerator.scaler}  # none, where what was trained in float16 is no more
        return self.session.restore(model, *map(_inner, optimizers), **{**scaler, **named, **others})

    def epochs(self, number: int) -> Iterator[int]:
        """Yield the epochs of a training that are left, from the one that the run stands in: for what is done once an
        epoch, around a loop over `loader`.

        Args:
            number: epochs in all, from the beginning of the training.

        Raises:
            InvalidInput: another such loop is under way.
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
        """Yield this rank's batches, on its device, from where the run stands to the end of the last epoch.

        The accelerator accumulates gradients of as many batches as a rank's share of a global batch has.

        Args:
            loader: a DataLoader that was not prepared. Its `batch_size` is the most samples that a device takes at
                once. Which samples in which order is the run's own business.
            global_batch: samples of one optimizer step, all ranks together.
            epochs: epochs the training has in all. In a loop over `run.epochs` nothing: there it is the one at hand.
            seed: of the order of samples.
            shuffle: False keeps the order of the data set.

        Raises:
            InvalidInput: with data of this kind nobody could go on where it was left; or an epoch is over, and no step
                was told of.
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
        self._accelerator.step = 0  # that it counts batches of: another training may have had other pieces
        data, session = loader.dataset, self.session
        # Refuses what it does not allow, and gives nothing where nothing is left.
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
                    "run.loader has given all of an epoch, and run.step has told of no step: call run.step() at the "
                    "end of each batch"
                )

    def phase(self, name: str | None = None) -> Phase:
        """One training of several: `with run.phase("finetune") as phase:`, as `Session.phase`, which says more."""
        return self.session.phase(name)

    @contextlib.contextmanager
    def scratch(self, *prepared: Any) -> Iterator[None]:
        """A pass that is to leave no trace, as `Session.scratch`, which says more.

        Args:
            prepared: what is to be put back and `restore` was not given, as `prepare` has returned it.
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
        """Keep a few plain values with each checkpoint from here on, for `resumed.notes`."""
        self.session.note(**values)

    @property
    def resumed(self) -> Resumed | None:
        """What `restore` is going to load, before anything is built for it; None where the run begins."""
        return self.session.resumed

    @property
    def steps(self) -> int:
        """Optimizer steps done since the run began, over all attempts."""
        return self.session.steps

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """As the accelerator's, with the part that this rank's batch has in the global one."""
        loss = loss * self._weight
        self._losses.append(loss.detach() / self._accelerator.gradient_accumulation_steps)
        self._accelerator.backward(loss, **options)

    def step(self, **metrics: float) -> None:
        """Say that a batch is done; with the last one of those that gradients are accumulated of, so is a step.

        It reports, saves when that is due, and stops where it is asked to.

        Raises:
            InvalidInput: gradients were not accumulated.
        """
        if self._accelerator.sync_gradients:
            if not self.session.step_due:
                raise InvalidInput(
                    "run.step: an optimizer's step was due with the first of several batches; put forward, backward "
                    "and the optimizer's step into `with accelerator.accumulate(model):`"
                )
            if not self._losses and not self._told:
                self._told = True
                log.warning(
                    "a step without run.backward(loss): accelerator.backward(loss) does not weight batches, which are "
                    "not all of one size, and tells the run of no loss"
                )
            loss = torch.stack(self._losses).sum() if self._losses else None
            self._losses.clear()
            self.session.step(loss, **metrics)

    def finish(self, **metrics: float) -> None:
        """Training is complete: save the final checkpoint and hand over the results. All ranks call this together."""
        self.session.finish(**metrics)


def _inner(optimizer: Any) -> Any:
    """Without Accelerate's cover."""
    if isinstance(optimizer, AcceleratedOptimizer):
        return optimizer.optimizer
    return optimizer
