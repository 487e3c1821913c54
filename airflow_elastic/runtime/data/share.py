"""A rank's share of the data: handed to the script piece by piece, and how far the run has come with it.

What counts is what a step was done with. Pieces may have been fetched before their turn: by a loader's workers, or by a
training loop that looks ahead.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from airflow_elastic.runtime.arguments import seed_number, whole_number
from airflow_elastic.runtime.checkpoint.save.replacements import ReplacementPoint, Replacements
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.data import indexed, stream
from airflow_elastic.runtime.data.accounting import Accountant
from airflow_elastic.runtime.data.claims import Claims, exchange
from airflow_elastic.runtime.data.portions import BatchShare, Portion
from airflow_elastic.runtime.data.sampler import ElasticBatches, Order
from airflow_elastic.runtime.data.stream import Plan, ShardedStream
from airflow_elastic.runtime.data.stream_plan import StreamPosition
from airflow_elastic.spec.checkpoints.sample_records import Consumed
from airflow_elastic.spec.errors import InvalidInput

log = logging.getLogger(__name__)

#: What a DataLoader may be told otherwise than this is the run's business.
_OURS = {
    "batch_size": (
        1,
        "the most samples that a rank gets at once are micro_batch, and those of a step global_batch",
    ),
    "sampler": (None, "the order of samples follows from seed and shuffle"),
    "batch_sampler": (None, "the order of samples follows from seed and shuffle"),
    "drop_last": (False, "an epoch has all samples, and the last step of it those that are left"),
}

#: So many global batches a loop may look ahead.
_AHEAD = 128


class DataShare:
    """What a rank's script is given.

    Args:
        ranks: this rank among the others.
        accountant: keeps what was consumed, where the run accounts for that.
        expect: is told how many steps there will be.

    Attributes:
        position: where the run stands: behind the last step.
        weight: what the mean loss of the samples at hand counts.
        step_due: whether they are the last ones of this rank's share of a global batch.
        epoch: the epoch that the script's loop over epochs is in; None where there is no such loop.
        epochs: how many that loop has.
        passes: whether the training at hand is complete, and nothing is given.
        passed: whether the script was given nothing of epochs that are over.
        within: whether the script is in a phase that it has named.
        replaced: what the script has replaced of what is saved.
        phase: number of the training.
        begin: is called before something of the epoch that the run stands in is given.
    """

    def __init__(
        self,
        ranks: Collectives,
        accountant: Accountant | None,
        expect: Callable[[int], None],
    ) -> None:
        self.position, self.weight, self.step_due = Position(), 1.0, True
        self._order: Order | None = None  # that the position is of
        self._over = False  # its epoch
        self._ranks, self._accountant, self._expect = ranks, accountant, expect
        self.begin: Callable[[], None] = lambda: None
        self.epoch: int | None = None
        self.epochs = self.phase = 0
        self.replaced = Replacements()
        self.passes = self.passed = self.within = False
        self._until = 0  # so many epochs are asked for
        self._given: deque[BatchShare] = deque()
        self._steps = 0  # that were told
        self._untold = 0  # of what loaders gave to their end
        self._ended = False  # the last one of them has
        self._told_here = 0  # of what that gave
        self._claims: Claims | None = None
        self._finished: Callable[[], BatchShare | None] | None = None

    def batches(
        self,
        data: torch.utils.data.Dataset[Any] | ShardedStream,
        *,
        global_batch: int,
        epochs: int | None,
        epoch: int | None = None,
        seed: int,
        shuffle: bool,
        micro_batch: int | None,
        even_pieces: bool,
        dynamic: bool,
        options: Mapping[str, Any],
    ) -> Iterator[Any]:
        """This rank's share of every global batch, as `Session.loader` says.

        Raises:
            InvalidInput: data of this kind cannot be gone on with, or not be handed out like that.
        """
        global_batch = whole_number("global_batch", global_batch, 1)
        epochs, seed = self._asked(epochs, epoch), seed_number(seed)
        micro_batch = None if micro_batch is None else whole_number("micro_batch", micro_batch, 1)
        for name in sorted(_OURS.keys() & options.keys()):
            usual, why = _OURS[name]
            if options[name] is not usual and options[name] != usual:
                raise InvalidInput(f"run.loader: {name}: given {options[name]!r}; allowed: nothing, as {why}")
        options = {name: value for name, value in options.items() if name not in _OURS}
        if dynamic and (isinstance(data, ShardedStream) or micro_batch is None or options.get("num_workers")):
            raise InvalidInput(
                "dynamic=True hands out pieces of micro_batch samples when ranks are ready for them: it needs data "
                "with an index, micro_batch, and num_workers=0, as workers fetch before anybody is ready"
            )
        if self.passes:
            return self._hand_out(iter(()), epochs)
        if isinstance(data, ShardedStream):
            self._go_on_in(Order(None, seed if shuffle else None), epochs)
            plan = Plan(global_batch, micro_batch, seed, shuffle, options)
            return self._hand_out(self._streamed(data, epochs, plan), epochs)
        if isinstance(data, torch.utils.data.IterableDataset) or not hasattr(data, "__len__"):
            raise InvalidInput(
                f"{type(data).__name__} has no length and no index, so nothing says how to go on in the middle of it: "
                "make it an elastic.ShardedStream, whose shards are read from an offset"
            )
        length = len(data)
        self._go_on_in(Order(length, seed if shuffle else None), epochs)
        self._expect((epochs if self.epoch is None else self.epochs) * -(-length // global_batch))
        if self._accountant is not None:
            self._accountant.has(self.phase, length=length)

        def batches_of(epoch: int) -> ElasticBatches:
            return ElasticBatches(
                length,
                global_batch=global_batch,
                epoch=epoch,
                offset=self._offset(epoch),
                seed=seed,
                rank=self._ranks.rank,
                world_size=self._ranks.world_size,
                shuffle=shuffle,
                micro_batch=micro_batch,
                even_pieces=even_pieces,
            )

        settings: dict[str, Any] = {"options": options, "account": self._accountant is not None}
        if dynamic:
            self._claims = self._claims or Claims(self._ranks)
            settings |= {"claims": self._claims, "micro_batch": micro_batch}
        portions_of = indexed.claimed_epoch_of if dynamic else indexed.epoch_of
        portions = (
            portion
            for epoch in range(self._begins[0], epochs)
            for portion in portions_of(data, batches_of(epoch), epoch, **settings)
        )
        return self._hand_out(portions, epochs)

    def _asked(self, epochs: int | None, epoch: int | None) -> int:
        """The epoch behind those that are asked for. Raises InvalidInput."""
        if epoch is not None:
            if epochs is not None or (self.epoch is not None and epoch != self.epoch):
                within = "" if self.epoch is None else f" (run.epochs is at {self.epoch})"
                raise InvalidInput(
                    f"run.loader: epoch: given {epoch!r}, and epochs={epochs!r}{within}; allowed: one of the two, and "
                    "in a loop over run.epochs the epoch that it is at"
                )
            return whole_number("epoch", epoch, 0) + 1
        if epochs is None:
            if self.epoch is None and not self.passes:
                raise InvalidInput(
                    "run.loader: epochs: given nothing; allowed: how many epochs the training has in all, or a loop "
                    "around it: `for epoch in run.epochs(3): for batch in run.loader(data, global_batch=64): …`"
                )
            return (self.epoch or 0) + 1
        epochs = whole_number("epochs", epochs, 0)
        if self.epoch is not None and epochs != self.epoch + 1:
            raise InvalidInput(
                f"run.loader: epochs: given {epochs} in a loop over run.epochs, which is at epoch {self.epoch}; "
                "allowed: nothing, as what is left of that epoch is given"
            )
        return epochs

    @property
    def used(self) -> bool:
        """Whether the training has been given something of its data by this."""
        return self._order is not None

    @property
    def at_end(self) -> bool:
        """Whether all was consumed of the epoch that a loop over epochs is in, or of the last one of a phase."""
        if self.epoch is None:
            return self._over and self.within and self.position.epoch + 1 >= self._until
        return self._over and self.position.epoch == self.epoch

    def close(self, epoch: int) -> None:
        """The loop over epochs is through with one, and with all that belongs to it."""
        self.position, self._over = Position(epoch + 1, 0, self.position.samples), False
        self._given.clear()

    def end(self) -> None:
        """All is done, and what belongs to the end of the last epoch, too."""
        if self._over:
            self.close(self.position.epoch)

    def enter(self, phase: int, *, passes: bool, within: bool) -> None:
        """Another training begins, with nothing behind it yet."""
        self.within, self._until = within, 0
        self.position, self._over, self._order = Position(0, 0, self.position.samples), False, None
        self.phase, self.passes, self.passed, self.epoch = phase, passes, False, None
        self._given.clear()
        self._untold, self._ended, self._told_here, self._finished = 0, False, 0, None
        self.weight, self.step_due = 1.0, True

    def _streamed(self, data: ShardedStream, epochs: int, plan: Plan) -> Iterator[Portion]:
        if data.lanes < self._ranks.world_size:
            log.warning(
                "%d lanes are not enough for %d ranks: some have nothing to do. More lanes, or more shards, help",
                data.lanes,
                self._ranks.world_size,
            )
        if self._accountant is not None:
            self._accountant.has(self.phase, shards=len(data.shards))
        account = self._accountant is not None
        for epoch in range(self._begins[0], epochs):
            spot = data.spot if data.spot.epoch == epoch else StreamPosition.first(epoch, data.lanes)
            yield from stream.epoch_of(data, spot, self._offset(epoch), plan, self._ranks, account=account)

    def _offset(self, epoch: int) -> int:
        return self.position.offset if epoch == self.position.epoch else 0

    @property
    def _begins(self) -> tuple[int, int]:
        """Epoch and offset of what comes next."""
        return _behind(self.position, over=self._over)

    def _go_on_in(self, order: Order, epochs: int) -> None:
        """Samples are given in this order from here on.

        Raises:
            InvalidInput: an epoch was begun in another one.
        """
        epoch, offset = self._begins
        if epoch >= epochs:
            if self._steps:  # of a run that was restarted at its end there is nothing to say
                log.warning(
                    "run.loader gives nothing: %d epochs are over, and epochs=%d is how many the run has in all, not "
                    "how many more. To go through the data again, give a larger number; data that is only looked at "
                    "needs a DataLoader of its own",
                    *(epoch, epochs),
                )
            return
        if offset and self._order not in (None, order):
            raise InvalidInput(
                f"the run has consumed {offset} samples of epoch {epoch} in one order of the data ({self._order}), and "
                f"the script now has ({order}): some samples would come twice and others never. Go on with what was, "
                "and change it when the epoch is over; or begin a run with another URI"
            )
        self._order = order

    def state_dict(self) -> dict[str, Any]:
        """What `position` is of, for a checkpoint."""
        order = self._order and [self._order.length, self._order.seed]
        return {"order": order, "over": self._over, "replaced": [[*one] for one in self.replaced.made]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The position, which is kept in the manifest, is of this."""
        self._order = Order(*state["order"]) if state["order"] else None
        self._over = state["over"]
        self.replaced.made = [ReplacementPoint(*one) for one in state.get("replaced", ())]

    def _hand_out(self, portions: Iterator[Portion], epochs: int) -> Iterator[Any]:
        self._until = epochs
        if self.passes or epochs > self.position.epoch:
            self.begin()
        else:
            self.passed = True
        if self._ended and self._told_here:  # or somebody has only looked
            self._untold += len(self._given)
        self._given.clear()
        self._ended, self._told_here = False, 0
        for portion in portions:
            self.weight, self.step_due = portion.weight, portion.completes is not None
            if portion.completes is not None:
                self._given.append(portion.completes)
                self._check_told()
            self._finished = portion.finished
            yield portion.content
            if self._finished is not None:
                raise InvalidInput(
                    "with dynamic=True forward and backward of each piece belong into `with run.accumulate(model):`"
                )
        self._ended = True

    def _check_told(self) -> None:
        """Raises InvalidInput where the script does not tell of its steps: the position would stay behind for good.

        A batch that is left out now and then is no reason to end a training that has gone on for days. And before the
        first step somebody may look at all of the data.
        """
        untold, told = self._untold + len(self._given), self._steps
        if told and untold > _AHEAD and untold * 4 > told:
            raise InvalidInput(
                f"run.loader has given {told + untold} global batches, and run.step was called {told} times: what it "
                "was not told of would be trained on again after a restart. Call run.step once for each global batch, "
                "also for one that you leave out; to accumulate gradients of several, have a larger global_batch and "
                f"micro_batch; go through one loader at a time, and look ahead by {_AHEAD} at the most"
            )

    @property
    def may_go_on(self) -> bool:
        """Whether it is not known yet if there is another piece for this rank."""
        return self._finished is not None

    @contextlib.contextmanager
    def accumulate(self, model: torch.nn.Module) -> Iterator[None]:
        """What `Session.accumulate` says."""
        parallel = model if isinstance(model, DistributedDataParallel) else None
        if self.may_go_on and parallel is None and not self._ranks.alone:
            raise InvalidInput(
                "dynamic=True needs a model in DistributedDataParallel: in others ranks wait for each other in each "
                "forward pass, and here they do not have as many"
            )
        with contextlib.nullcontext() if parallel is None or self.step_due else parallel.no_sync():
            yield
        if self.finish_piece() and parallel is not None:
            exchange(parallel)

    def finish_piece(self) -> bool:
        """The script is through with a piece; returns whether all ranks are now to exchange their gradients."""
        finished, self._finished = self._finished, None
        given = finished() if finished is not None else None
        if given is not None:
            self._given.append(given)
            self.step_due = True
            self._check_told()
        return given is not None

    @property
    def ahead(self) -> tuple[int, int]:
        """Epoch and offset behind all that was given, whether a step was done with it yet or not."""
        return _behind(last := self._given[-1], over=last.over) if self._given else self._begins

    def stepped(self, step: int) -> None:
        """A step was done with what was given first.

        Raises:
            InvalidInput: not all of it has been given yet.
        """
        if not self._given:
            if not self.step_due:
                raise InvalidInput(
                    "run.step was called before the last piece of a global batch: with micro_batch a step has several, "
                    "and is due where run.step_due says so"
                )
            return
        given = self._given.popleft()
        self._steps += 1
        self._told_here += 1
        self.position = Position(given.epoch, given.offset, self.position.samples + given.size)
        self._over = given.over
        if given.done is not None:
            given.done()
        if self._accountant is not None:
            consumed = Consumed(
                step, given.epoch, given.samples, given.spans, given.ended, given.size, self.phase
            )
            self._accountant.stepped(consumed)


def _behind(where: Position | BatchShare, *, over: bool) -> tuple[int, int]:
    return (where.epoch + 1, 0) if over else (where.epoch, where.offset)
