"""What a training script holds: the session of one rank."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from airflow_elastic.runtime.accounting import Accountant
from airflow_elastic.runtime.agreement import Agreement
from airflow_elastic.runtime.averaging import Averaging
from airflow_elastic.runtime.data import Feed
from airflow_elastic.runtime.each_rank import told_by_each
from airflow_elastic.runtime.forward_clock import ForwardClock
from airflow_elastic.runtime.pace import Pace
from airflow_elastic.runtime.ranks import join
from airflow_elastic.runtime.restoring import Restorer
from airflow_elastic.runtime.saving import BREAKPOINT, ORDER, Position, Saver, Stateful, in_between
from airflow_elastic.runtime.stage import Stage
from airflow_elastic.runtime.stream import ShardedStream
from airflow_elastic.runtime.surroundings import Surroundings
from airflow_elastic.runtime.voice import Voice, finite, number_of
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.resumed import Resumed

log = logging.getLogger(__name__)


def init(*, total_steps: int | None = None, backend: str | None = None, timeout: float = 1800.0) -> Session:
    """Join the other ranks; call once, before anything else of torch.distributed.

    Started by airflow-elastic, the script reports, saves and restores; started by torchrun or as a plain program it
    trains all the same, without checkpoints.

    Args:
        total_steps: optimizer steps the training is meant to have, for progress; `loader` says so too.
        backend: torch's backend for gradients. Default: nccl where there are GPUs, else gloo.
        timeout: seconds after which a collective that does not come back fails.
    """
    return Session(Surroundings.read(), total_steps=total_steps, backend=backend, timeout=timeout)


class Session:
    """One rank of a run.

    Attributes:
        rank: this rank, from 0.
        local_rank: this rank on its worker.
        world_size: all ranks.
        device: where this rank's tensors belong.
        attempt: number of the attempt, from 1.
    """

    def __init__(
        self, surroundings: Surroundings, *, total_steps: int | None, backend: str | None, timeout: float
    ) -> None:
        self.rank, self.local_rank = surroundings.rank, surroundings.local_rank
        self.world_size, self.attempt = surroundings.world_size, surroundings.attempt
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", self.local_rank) if cuda else torch.device("cpu")
        self._steps = 0
        self._ranks = join(self.rank, self.world_size, self.device, backend, timeout)
        self._policy = surroundings.checkpoint or CheckpointPolicy()
        self._voice = Voice(surroundings, total_steps)
        accounts = self._policy.account_samples
        self._accountant = Accountant(surroundings, self._voice.words) if accounts else None
        self._feed = Feed(self._ranks, self._accountant, self._voice.expect)
        stage = Stage.found(self.local_rank)
        self._restorer = Restorer.of(surroundings, self._ranks, stage, self._voice.restoring)
        if self._restorer is not None:
            self._restorer.look()
        self._saver: Saver | None = None
        self._announced, self._saves_done = False, 0
        self._pace: Pace | None = None
        self._loss: torch.Tensor | float | None = None
        if stage is not None:
            words, number = self._voice.words, surroundings.generation
            self._saver = Saver(self._ranks, generation=number, stage=stage, words=words, policy=self._policy)
        self._objects: Stateful | None = None
        self._saved_step, self._saved_at = -1, time.monotonic()
        self._agreement = Agreement(self._ranks)
        self._averaging: Averaging | None = None
        self._metrics: dict[str, float] = {}  # newest numbers of the script's own, for the manifest

    # -- restoring -----------------------------------------------------------------------------------------------

    @property
    def resumed(self) -> Resumed | None:
        """What `restore` is going to load, before anything is built for it; None where the run begins.

        The same on all ranks. Where that checkpoint turns out to be damaged, what was built by it is of no use: it is
        set aside, the rank ends with exit code 138, and the next attempt is told of the checkpoint before it.

        Raises:
            InvalidInput: the newest checkpoint is of another run.
            StoreError: the run's storage cannot be read.
        """
        return self._restorer.resumed if self._restorer else None

    @property
    def steps(self) -> int:
        """Optimizer steps done since the run began, over all attempts; before `restore` those of `resumed`."""
        if self._objects is None and not self._steps and (resumed := self.resumed) is not None:
            return resumed.step
        return self._steps

    def restore(self, model: torch.nn.Module, *optimizers: torch.optim.Optimizer, **others: Any) -> int:
        """Load the newest verified checkpoint; from then on the same objects are what is saved.

        Args:
            model: the model, wrapped (DDP, FSDP2) or not.
            optimizers: its optimizers.
            others: whatever else has `state_dict` and `load_state_dict`: schedulers, gradient scalers, ... All ranks
                have them alike, but for a StatefulDataLoader of torchdata, whose state is each rank's own. None: the
                script has no such object any more, and what a checkpoint has of it is left.

        Returns:
            The step that training goes on from; 0 where there is no checkpoint.

        Raises:
            CheckpointDamaged: there are checkpoints, but none is whole.
            InvalidInput: the newest one is of another model, optimizer, dtype or run, of a StatefulDataLoader on more
                or fewer ranks, or of a ShardedStream with other shards, or has an object that is not given; or a worker
                has not the memory to save into.
        """
        began = time.monotonic()
        left = frozenset(name for name, other in others.items() if other is None)
        kept = {name: told_by_each(one, self._ranks) for name, one in others.items() if one is not None}
        self._objects = Stateful(model, optimizers, {**kept, ORDER: self._feed}, left)
        self._voice.listen(ForwardClock(model))
        if self._saver is not None:
            self._saver.attend(self._objects.stepping)
        manifest = self._restorer.restore(self._objects) if self._restorer else None
        if manifest is not None:
            self._steps = self._saved_step = manifest.step
            self._feed.position = Position(manifest.epoch, manifest.offset, manifest.samples)
            self._agreement.again(self._steps)
        if self._saver is not None:
            self._saver.check_memory(self._objects)
        if self._accountant is not None:
            self._accountant.goes_on(manifest)
        verified = bool(self._restorer and self._restorer.verified)
        self._voice.restored(self._steps, self._feed.position, time.monotonic() - began, verified=verified)
        if self._policy.auto_interval and self._restorer:
            between = self._restorer.seconds_between_failures()
            self._pace = Pace(between, self._policy.every_seconds, self._voice.words, told=self.rank == 0)
        self._saved_at = time.monotonic()
        return self._steps

    def average(self, *, every: int, patience: float | None = None) -> None:
        """From here on each rank trains by itself, and all take the mean of their weights every so many steps.

        For slow networks: nothing is exchanged in between. All ranks call this together, after `restore`, with a model
        that nothing wraps. Where a state is saved, all of them take the mean of weights and optimizer states before.
        Stops and saves that somebody asks for take effect with the second round after.

        Args:
            every: steps from one round to the next.
            patience: seconds that ranks wait in a round for those that are late, which go on from its mean when they
                come; what they have done counts in the round after. Default: as long as it takes.

        Raises:
            InvalidInput: there is no model yet, or one whose ranks exchange gradients or weights already.
        """
        if self._objects is None or self._averaging is not None:
            raise InvalidInput("call run.average once, after run.restore(model, optimizer)")
        model, optimizers = self._objects.model, self._objects.optimizers
        self._averaging = Averaging(
            model, optimizers, self._ranks, step=self._steps, every=every, patience=patience
        )

    def settle(self) -> None:
        """Have all ranks go on from the same weights, where `average` has them train by themselves: to evaluate them.

        All ranks call this together. `save` and `finish` do so, too.
        """
        if self._averaging is not None:
            self._join_saver()
            self._averaging.settle()

    # -- data ----------------------------------------------------------------------------------------------------

    def loader(
        self,
        data: torch.utils.data.Dataset[Any] | ShardedStream,
        *,
        global_batch: int,
        epochs: int,
        seed: int = 0,
        shuffle: bool = True,
        micro_batch: int | None = None,
        even_pieces: bool = False,
        dynamic: bool = False,
        **options: Any,
    ) -> Iterator[Any]:
        """Yield this rank's share of every global batch, from where the run stands to the end of the last epoch.

        Call `step` once for each, or where `step_due` says so. Every sample of an epoch is consumed exactly once, at
        any world size and over any number of restarts; the global batch stays what it is.

        Args:
            data: a data set with a length and an index, or a stream of shards, which `restore` was given, too.
            global_batch: samples of one optimizer step, all ranks together.
            epochs: epochs the run has in all.
            seed: of the order of samples.
            shuffle: False keeps the order of the data set. Of a stream, its shards are shuffled.
            micro_batch: the most samples that a rank gets at once: its share of a global batch comes in pieces, whose
                gradients are to be summed. Default: the share comes whole.
            even_pieces: cut the smaller global batch at the end of an epoch into as many pieces as any other: for a
                loop that counts them. Not of a stream.
            dynamic: hand these pieces out to whoever is ready, where ranks are not equally fast.
            options: for `torch.utils.data.DataLoader`, e.g. num_workers, collate_fn, pin_memory.

        Raises:
            InvalidInput: with data of this kind nobody could go on where it was left; or an epoch was begun in another
                order: with another seed, or another number of samples.
        """
        saved = self._objects.others.values() if self._objects is not None else (data,)
        if isinstance(data, ShardedStream) and all(one is not data for one in saved):
            raise InvalidInput(
                "where a stream stands has to be saved: run.restore(model, optimizer, data=stream), then run.loader"
            )
        return self._feed.batches(
            data,
            global_batch=global_batch,
            epochs=epochs,
            seed=seed,
            shuffle=shuffle,
            micro_batch=micro_batch,
            even_pieces=even_pieces,
            dynamic=dynamic,
            options=options,
        )

    @property
    def ahead(self) -> tuple[int, int]:
        """Epoch and offset, in samples, of what comes behind all that `loader` has given; 0 and 0 before it has."""
        return self._feed.ahead

    def expect(self, total_steps: int) -> None:
        """Say how many optimizer steps the training is meant to have, where `loader` does not know it."""
        self._voice.expect(total_steps)

    @property
    def weight(self) -> float:
        """Multiply the mean loss of what `loader` gave by it, so that the gradient is that of the global batch.

        1.0 where the global batch divides evenly among ranks, and comes whole.
        """
        return self._feed.weight

    @property
    def step_due(self) -> bool:
        """Whether what `loader` gave is the last of a global batch, and the optimizer's turn has come."""
        return self._feed.step_due

    def accumulate(self, model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        """Around the forward and backward pass of each piece: DDP exchanges gradients with the last of a step only.

        Raises:
            InvalidInput: pieces cannot be handed out to whoever is ready, with such a model.
        """
        return self._feed.accumulate(model)

    # -- stepping ------------------------------------------------------------------------------------------------

    def step(self, loss: torch.Tensor | float | None = None, **metrics: float) -> None:
        """Say that one optimizer step is done: reports it, saves when that is due, and stops where it is asked to.

        Args:
            loss: for the progress; read at most once a second, so it costs no synchronisation.
            metrics: further numbers for the progress.
        """
        self._steps += 1
        self._feed.stepped(self._steps)
        self._voice.stepped(self._steps, self._feed.position, loss, metrics)
        self._loss = loss
        self._metrics = metrics or self._metrics
        # Where ranks train by themselves, they have as much to do with each other as they average, and no more.
        together = self._averaging is None or self._averaging.due(self._steps)
        if together:
            if self._averaging is not None:
                self._join_saver()
                self._averaging.average(self._steps)
            self._act()
        every = self._policy.every_steps
        if every is not None and self._steps % every == 0:
            self.save(reason="steps")
        between = in_between(self._policy, self._steps)
        if between is not None:
            self.settle()
            self._save(between)
        if together and (self._averaging is not None or self._agreement.due(self._steps)):
            self._ask()
        if not self._announced and self._saver is not None and self._objects is not None:
            self._announced = True  # after the first step: optimizers have their state now
            self._saver.announce(self._objects)
        self._loss = None  # it may hold much memory

    def _ask(self) -> None:
        """Begin to find out, together, whether anybody was asked to save or to stop."""
        due = self._seconds is not None and time.monotonic() - self._saved_at >= self._seconds
        words = (self._voice.park_ordered, self._voice.saves_ordered, float(due))
        if self._agreement.ask(*words, soon=self._averaging is None):
            self._act()

    def _act(self) -> None:
        """Do what anybody was asked for. All ranks do so with the same step."""
        words = self._agreement.answer()
        if words is None:
            return
        park, saves, late = words
        if park:
            self.save(reason=BREAKPOINT)
            self._park()
        if saves > self._saves_done:
            self.save(reason="requested")
            self._saves_done = int(saves)
        elif late:
            self.save(reason="seconds")
        self._agreement.again(self._steps)

    @property
    def _seconds(self) -> float | None:
        return self._pace.seconds if self._pace is not None else self._policy.seconds

    # -- saving --------------------------------------------------------------------------------------------------

    def save(self, *, reason: str = "script") -> None:
        """Save now, unless this step is saved already. All ranks call this together.

        Returns when the state is in memory of the worker's agent, which writes it to storage while training goes on.

        Raises:
            InvalidInput: there is not enough memory for it, or something in it cannot be kept.
        """
        if self._saved_step == self._steps:
            self._join_saver()
            return
        self.settle()
        began = time.monotonic()
        if self._save(reason):
            self._saved_step = self._steps
            if self._pace is not None:
                self._pace.measured(time.monotonic() - began)
        self._saved_at = time.monotonic()

    def _join_saver(self) -> None:
        """What is copied beside training is copied then, and may be changed."""
        if self._saver is not None:
            self._saver.join()

    def _save(self, reason: str) -> bool:
        if self._saver is None or self._objects is None:
            return False
        with self._voice.saving():
            told = (
                self._metrics if (loss := number_of(self._loss)) is None else {"loss": loss, **self._metrics}
            )
            return self._saver.save(
                self._objects,
                self._steps,
                self._feed.position,
                reason=reason,
                metrics=finite(told),
                account=self._accountant.account() if self._accountant else None,
            )

    def finish(self, **metrics: float) -> None:
        """Training is complete: save the final checkpoint and hand over the results. All ranks call this together."""
        self._metrics = finite(metrics)
        if lost := [f"{name}={metrics[name]}" for name in sorted(metrics.keys() - self._metrics.keys())]:
            log.warning("not finite, and so not kept: %s", ", ".join(lost))
        self._agreement.answer()
        self.settle()
        if self._averaging is not None:
            self._averaging.end()
        self.save(reason="final")
        self._ranks.barrier()
        self._voice.finished(self._steps, self._metrics)
        if dist.is_initialized():
            dist.destroy_process_group()

    def _park(self) -> None:
        """Saved, and nothing more to do: the agent ends this process and starts the next one where it is needed."""
        self._voice.parked()
        if threading.current_thread() is threading.main_thread():
            # A framework may have put it off to the end of a step that does not come.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            signal.pause()
