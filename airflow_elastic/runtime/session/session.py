"""The session of one rank, which a training script uses."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from airflow_elastic.runtime.checkpoint.restore.origin import Beginning
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.per_rank_state import per_rank_if_needed
from airflow_elastic.runtime.checkpoint.save.save import ORDER, Saver
from airflow_elastic.runtime.checkpoint.save.staging_area import StagingArea
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.collectives.local_sgd import LocalSGD
from airflow_elastic.runtime.collectives.process_group import join
from airflow_elastic.runtime.data.accounting import Accountant
from airflow_elastic.runtime.data.early_stopping import EarlyStopping
from airflow_elastic.runtime.data.share import DataShare
from airflow_elastic.runtime.data.stream import ShardedStream
from airflow_elastic.runtime.environment import RankEnvironment
from airflow_elastic.runtime.model_changes.rebuild import Rebuild, rebuilt
from airflow_elastic.runtime.session.model_changes import ModelChanges
from airflow_elastic.runtime.session.phase_loop import PhaseLoop
from airflow_elastic.runtime.session.phases import PhaseProgress
from airflow_elastic.runtime.session.reporting.heartbeat import Heartbeat, finite, number_of
from airflow_elastic.runtime.session.resume import Resume
from airflow_elastic.runtime.session.save_interval import SaveInterval
from airflow_elastic.runtime.session.save_schedule import BEST, PHASE, SaveSchedule
from airflow_elastic.runtime.session.scratch import Scratch
from airflow_elastic.runtime.session.train import Stay, Train
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.checkpoints.resumed import Resumed
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.models.start import Origin
from airflow_elastic.spec.training.early_stop import EarlyStop

log = logging.getLogger(__name__)


class Session(PhaseLoop, ModelChanges, Scratch, Train):
    """One rank of a run.

    Attributes:
        rank: this rank, from 0.
        local_rank: this rank on its worker.
        world_size: number of all ranks.
        device: the device for this rank's tensors.
        attempt: number of the attempt, from 1.
        is_reported: whether an agent receives this rank's reports.
        origin: what the run has started from (`start_from`); None: from scratch. Its `words` say it in words.
    """

    def __init__(
        self, surroundings: RankEnvironment, *, total_steps: int | None, backend: str | None, timeout: float
    ) -> None:
        self._stage: StagingArea | None = None
        self._stay, self._given = Stay(), (total_steps, backend, timeout)
        self._begin(surroundings)

    def _begin(self, surroundings: RankEnvironment) -> None:
        """Join the other ranks. With `train` that is done again for each generation."""
        total_steps, backend, timeout = self._given
        self.rank, self.local_rank = surroundings.rank, surroundings.local_rank
        self.world_size, self.attempt = surroundings.world_size, surroundings.attempt
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", self.local_rank) if cuda else torch.device("cpu")
        self.origin: Origin | None = surroundings.origin
        self._ranks = join(self.rank, self.world_size, self.device, backend, timeout)
        self._policy = surroundings.checkpoint or CheckpointPolicy()
        self._heartbeat = Heartbeat(surroundings, total_steps)
        accounts = self._policy.account_samples
        self._accountant = Accountant(surroundings, self._heartbeat.words) if accounts else None
        self._feed = DataShare(self._ranks, self._accountant, self._expect)
        self._stage = stage = StagingArea.found(self.local_rank, self._stage)
        self._restorer = Restorer.of(surroundings, self._ranks, stage, self._heartbeat.restoring)
        if self._restorer is not None:
            self._restorer.look()
        self._saver: Saver | None = None
        self._announced = False
        self._loss: torch.Tensor | float | None = None
        self.is_reported = stage is not None
        if stage is not None:
            stage.is_aborted = lambda: self._must_leave
        if stage is not None and not surroundings.evaluation:
            words, number = self._heartbeat.words, surroundings.generation
            self._saver = Saver(self._ranks, generation=number, stage=stage, words=words, policy=self._policy)
        self._objects: Stateful | None = None
        self._saves = SaveSchedule(self._ranks, self._heartbeat, self._policy, self._write, self.settle)
        self._saves.stays = lambda: self._can_leave
        self._averaging: LocalSGD | None = None
        self._metrics: dict[str, float] = {}  # the script's newest metrics, for the manifest
        self._notes: dict[str, Any] = {}
        self._trained: set[int] = set()  # the phases in which a framework has already trained
        self._progress = PhaseProgress(self._restorer.phases if self._restorer else ())
        beginning = None
        if self.origin is not None:
            procs, told = stage.procs if stage else 1, self._heartbeat.restoring
            beginning = Beginning(self.origin, surroundings, self._ranks, procs, told)
        self._resume = Resume(self._restorer, self._progress, self._feed, beginning)
        self._feed.begin = self._resume.begin
        if surroundings.early_stop is not None:
            early = EarlyStopping(EarlyStop.parse(surroundings.early_stop), self._ranks)
            self._feed.early, self._heartbeat.early = early, lambda: early.told

    # -- restoring -----------------------------------------------------------------------------------------------

    @property
    def resumed(self) -> Resumed | None:
        """Facts about the checkpoint that `restore` will load, so that a script can build its model for it.

        The same on all ranks; None if the run begins. If the checkpoint turns out to be damaged, it is set aside, and
        the rank ends with exit code 138. The next attempt gets the checkpoint before it.

        Raises:
            InvalidInput: the newest checkpoint belongs to another run.
            StoreError: the run's storage cannot be read.
        """
        return self._restorer.resumed if self._restorer else None

    @property
    def steps(self) -> int:
        """Optimizer steps done since the run began, over all attempts. Before `restore`, the step of `resumed`."""
        progress = self._progress
        if self._objects is None and not progress.steps and (resumed := self.resumed) is not None:
            return resumed.step
        return progress.steps

    def restore(
        self,
        model: torch.nn.Module,
        *optimizers: torch.optim.Optimizer,
        rebuild: Rebuild | None = None,
        **others: Any,
    ) -> int:
        """Load the newest verified checkpoint. From then on, saves store the state of these objects.

        If the run has no checkpoint yet and starts from other weights (`start_from`), load these.

        Args:
            model: the model, wrapped (DDP, FSDP2) or not.
            optimizers: its optimizers.
            rebuild: for a model or optimizers that change their shape during training. Called on each rank before
                anything is loaded, with the facts of the checkpoint (`resumed`); not if there is no checkpoint. It
                changes them in place to their shape at that time, and may return other optimizers to load instead.
            others: other objects with `state_dict` and `load_state_dict`, such as schedulers and gradient scalers. They
                are the same on all ranks, except a StatefulDataLoader of torchdata: its state is saved for each rank.
                None: the script no longer has this object, and its state in a checkpoint is not loaded.

        Returns:
            The step that training goes on from; 0 if there is no checkpoint.

        Raises:
            CheckpointDamaged: there are checkpoints, but all are damaged.
            InvalidInput: the newest checkpoint has another model, optimizer, dtype or run, or an object that is not
                given. Or its StatefulDataLoader had another number of ranks, or its ShardedStream other shards. Or a
                worker does not have enough memory to save into.
        """
        began = time.monotonic()
        left = frozenset(name for name, other in others.items() if other is None)
        kept = {name: per_rank_if_needed(one, self._ranks) for name, one in others.items() if one is not None}
        more = {**kept, ORDER: self._feed}
        self._objects = rebuilt(model, optimizers, more, left, rebuild, self._resume.facts)
        self._heartbeat.listen(model)
        if self._saver is not None:
            self._saver.attend(self._objects.stepping)
        manifest, progress = self._resume.load(self._objects), self._progress
        if not self.in_scratch:
            given = (*model.modules(), *self._objects.optimizers, *(others[name] for name in kept))
            self._note_restored(given, restored=manifest is not None)
        if self._saver is not None and not progress.passes:
            self._saver.check_memory(self._objects)
        if manifest is not None and not progress.passes:
            self._notes = {**manifest.notes, **self._notes}
        if self._accountant is not None and (manifest is not None or not progress.steps):
            self._accountant.goes_on(manifest)
        if manifest is not None or not progress.steps:
            verified = bool(self._restorer and self._restorer.verified)
            spent = time.monotonic() - began
            self._heartbeat.restored(progress.steps, self._feed.position, spent, verified=verified)
        pace = None
        if self._policy.auto_interval and self._restorer and not progress.walked:
            between = self._restorer.stock.seconds_between_failures()
            longest, words = self._policy.every_seconds, self._heartbeat.words
            pace = SaveInterval(between, longest, words, logs=self.rank == 0)
        self._saves.goes_on(progress.steps, pace, saved=manifest is not None)
        self._announced = False
        return progress.steps

    def average(self, *, every: int, patience: float | None = None) -> None:
        """From here on each rank trains by itself, and every `every` steps all ranks average their weights.

        For slow networks: ranks exchange nothing in between. All ranks call this together, after `restore`, with a
        model without a wrapper. Before each save, they average weights and optimizer states. Requests to save or stop
        take effect with the second round after them.

        Args:
            every: steps from one round to the next.
            patience: seconds that a round waits for late ranks. A late rank goes on from the mean of that round when it
                comes, and its own steps count in the next round. Default: no limit.

        Raises:
            InvalidInput: there is no model yet, or its ranks exchange gradients or weights already.
        """
        if self._objects is None or self._averaging is not None:
            raise InvalidInput("call run.average once, after run.restore(model, optimizer)")
        model, optimizers = self._objects.model, self._objects.optimizers
        self._averaging = LocalSGD(
            model, optimizers, self._ranks, step=self._progress.steps, every=every, patience=patience
        )

    # -- data ----------------------------------------------------------------------------------------------------

    def loader(
        self,
        data: torch.utils.data.Dataset[Any] | ShardedStream,
        *,
        global_batch: int,
        epochs: int | None = None,
        epoch: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        micro_batch: int | None = None,
        even_pieces: bool = False,
        dynamic: bool = False,
        **options: Any,
    ) -> Iterator[Any]:
        """Yield this rank's share of every global batch, from the run's position to the end of the last epoch.

        Call `step` once for each share; with `micro_batch`, when `step_due` is True. Every sample of an epoch is
        consumed exactly once, at any world size and over any number of restarts. The global batch stays the same.

        Args:
            data: a data set with a length and an index, or a stream of shards that was also passed to `restore`.
            global_batch: samples of one optimizer step, over all ranks.
            epochs: epochs of the training in all. Not in a loop over `run.epochs`, which sets the current epoch.
            epoch: the current epoch, in place of `epochs`, for a loop that counts its epochs itself.
            seed: seed of the order of samples.
            shuffle: False keeps the order of the data set. A stream shuffles its shards.
            micro_batch: the most samples that a rank gets at once. Its share of a global batch then comes in pieces,
                and the script sums their gradients. Default: the whole share at once.
            even_pieces: cut the smaller global batch at the end of an epoch into as many pieces as the others. For a
                loop that counts them. Not with a stream.
            dynamic: give each piece to the next rank that is ready. For ranks that are not equally fast.
            options: for `torch.utils.data.DataLoader`, e.g. num_workers, collate_fn, pin_memory.

        Raises:
            InvalidInput: a restart could not go on in data of this kind. Or the epoch was begun with another seed, or
                another number of samples.
        """
        saved = self._objects.others.values() if self._objects is not None else (data,)
        if isinstance(data, ShardedStream) and all(one is not data for one in saved):
            raise InvalidInput(
                "the position of a stream must be saved: call run.restore(model, optimizer, data=stream) before"
            )
        self._resume.prepare()
        batches = self._feed.batches(
            data,
            global_batch=global_batch,
            epochs=epochs,
            epoch=epoch,
            seed=seed,
            shuffle=shuffle,
            micro_batch=micro_batch,
            even_pieces=even_pieces,
            dynamic=dynamic,
            options=options,
        )
        return self._looked_at(batches) if self.in_scratch else batches

    @property
    def ahead(self) -> tuple[int, int]:
        """Epoch, and offset in samples, of the next sample that `loader` will yield."""
        return self._feed.ahead

    @property
    def weight(self) -> float:
        """Multiply the mean loss of each batch from `loader` by this, to get the gradient of the global batch.

        1.0 if the global batch divides evenly among ranks, and each share comes whole.
        """
        return self._feed.weight

    @property
    def step_due(self) -> bool:
        """Whether the last batch from `loader` completes a global batch, so that the optimizer must step."""
        return self._feed.step_due

    def accumulate(self, model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        """Around the forward and backward pass of each piece: DDP exchanges gradients only at the last one of a step.

        Raises:
            InvalidInput: `dynamic` is not possible with such a model.
        """
        return self._feed.accumulate(model)

    # -- stepping ------------------------------------------------------------------------------------------------

    def step(self, loss: torch.Tensor | float | None = None, **metrics: float) -> None:
        """Call this after each optimizer step: it reports the step, saves if a save is due, and stops on request.

        Args:
            loss: shown in the progress. It is read at most once a second, and from a GPU without a wait.
            metrics: other numbers to show in the progress.
        """
        self._check_stays()
        self._resume.begin()
        self._progress.stepped()
        step = self._progress.steps
        self._feed.stepped(step)
        self._heartbeat.stepped(step, self._feed.position, loss, metrics)
        self._loss, self._metrics = loss, metrics or self._metrics
        early, is_best = self._feed.early, False
        if early is not None:
            early.note(step, {"loss": number_of(loss), **metrics} if early.rule.metric == "loss" else metrics)
        self._saves.waits = self._feed.at_end
        # Ranks that train by themselves meet only in the rounds in which they average.
        averaging = self._averaging
        together = averaging is None or averaging.due(step)
        if together:
            if averaging is not None:
                self._join_saver()
                averaging.average(step)
            is_best = early is not None and early.agree()
            self._saves.act(step)
        self._saves.due(step)
        if is_best:
            self._saves.now(step, BEST, waits=False)  # a framework has measured it, at the end of the step
        if together:
            self._saves.ask(step, averaging=averaging is not None)
        if not self._announced and self._saver is not None and self._objects is not None:
            self._announced = True  # only now, because optimizers get their state in the first step
            self._saver.announce(self._objects)
        if not self._saves.waits:
            self._loss = None  # its graph may hold much memory

    # -- saving --------------------------------------------------------------------------------------------------

    def save(self, *, reason: str = "script") -> None:
        """Save now, unless this step is saved already. All ranks call this together.

        Returns when the agent has the state in memory. The agent writes it to storage while training goes on.

        Raises:
            InvalidInput: there is not enough memory, or the state has a value that cannot be saved.
        """
        if not self._saves.now(self._progress.steps, reason):
            self._join_saver()

    def _join_saver(self) -> None:
        """Wait until a copy that runs beside training is done, so that the objects may change."""
        if self._saver is not None:
            self._saver.join()

    def _write(self, reason: str) -> bool:
        if self._saver is None or self._objects is None:
            return False
        self._check_stays()
        with self._heartbeat.saving():
            progress = self._progress
            metrics = self._metrics if self._loss is None else {"loss": self._loss, **self._metrics}
            return self._saver.save(
                self._objects,
                progress.steps,
                self._feed.position,
                reason=reason,
                metrics=metrics,
                account=self._accountant.account() if self._accountant else None,
                phases=progress.complete(sealed=True) if reason == PHASE else progress.phases,
                notes=self._notes,
            )

    def finish(self, **metrics: float) -> None:
        """Training is complete: save the final checkpoint, and report the results. All ranks call this together."""
        self._metrics = finite(metrics)
        if lost := [f"{name}={metrics[name]}" for name in sorted(metrics.keys() - self._metrics.keys())]:
            log.warning("these metrics are not finite, so they are not kept: %s", ", ".join(lost))
        self._progress.check_finish()
        self._resume.begin()
        self._feed.end()
        self._saves.answer()
        self._saves.forget()
        self.settle()
        if self._averaging is not None:
            self._averaging.end()
        self.save(reason="final")
        self._ranks.barrier()
        self._heartbeat.finished(self._progress.steps, self._metrics)
        if dist.is_initialized():
            dist.destroy_process_group()
