"""A rank's share of the data, which the script gets piece by piece, and the run's position in the data.

Samples count when their step is done. They may have been fetched earlier: by a loader's workers, or by a training loop
that looks ahead.
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
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.data import indexed, stream
from airflow_elastic.runtime.data.accounting import Accountant
from airflow_elastic.runtime.data.claims import Claims, exchange
from airflow_elastic.runtime.data.early_stopping import EarlyStopping
from airflow_elastic.runtime.data.loader_options import without_ours
from airflow_elastic.runtime.data.portions import BatchShare, Portion
from airflow_elastic.runtime.data.replacements import ReplacementPoint, Replacements
from airflow_elastic.runtime.data.sampler import ElasticBatches, Order
from airflow_elastic.runtime.data.stream import Plan, ShardedStream
from airflow_elastic.runtime.data.stream_plan import StreamPosition
from airflow_elastic.spec.checkpoints.sample_records import Consumed
from airflow_elastic.spec.errors import InvalidInput

log = logging.getLogger(__name__)

#: A loop may look ahead by so many global batches.
_AHEAD = 128


class DataShare:
    """The data that a rank's script gets.

    Args:
        ranks: this rank among the others.
        accountant: keeps the consumed samples, if the run accounts for them.
        expect: gets the number of steps that there will be.

    Attributes:
        position: of the run, after the last step.
        weight: of the mean loss of the current samples.
        step_due: whether these are the last ones of this rank's share of a global batch.
        epoch: the epoch that the script's loop over epochs is in; None without such a loop.
        epochs: the number of epochs of that loop.
        passes: whether the current training is complete, so that loops yield no data.
        passed: whether a loop has yielded no data for epochs that are over.
        within: whether the script is in a phase that it has named.
        replaced: the saved objects that the script has replaced.
        phase: number of the training.
        early: ends the training early; None: it does not.
        begin: called before the run's current epoch yields data.
    """

    def __init__(
        self,
        ranks: Collectives,
        accountant: Accountant | None,
        expect: Callable[[int], None],
    ) -> None:
        self.position, self.weight, self.step_due = Position(), 1.0, True
        self._order: Order | None = None  # of the position
        self._over = False  # whether the position's epoch is over
        self._ranks, self._accountant, self._expect = ranks, accountant, expect
        self.begin: Callable[[], None] = lambda: None
        self.early: EarlyStopping | None = None
        self.epoch: int | None = None
        self.epochs = self.phase = 0
        self.replaced = Replacements()
        self.passes = self.passed = self.within = False
        self._until = 0  # the number of epochs that the script wants
        self._given: deque[BatchShare] = deque()
        self._steps = 0  # calls of `run.step`
        self._untold = 0  # global batches without a step, of loaders that have ended
        self._ended = False  # whether the last loader has
        self._told_here = 0  # steps with that loader's global batches
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
            InvalidInput: a run cannot resume within data of this kind, or the options do not fit it.
        """
        global_batch = whole_number("global_batch", global_batch, 1)
        epochs, seed = self._asked(epochs, epoch), seed_number(seed)
        micro_batch = None if micro_batch is None else whole_number("micro_batch", micro_batch, 1)
        options = without_ours(options)
        if dynamic and (isinstance(data, ShardedStream) or micro_batch is None or options.get("num_workers")):
            raise InvalidInput(
                "dynamic=True gives a piece of micro_batch samples to a rank when it is ready. It needs data with an "
                "index, micro_batch, and num_workers=0, because workers fetch before a rank is ready"
            )
        if self.passes:
            return self._hand_out(iter(()), epochs)
        if isinstance(data, ShardedStream):
            self._go_on_in(Order(None, seed if shuffle else None), epochs)
            plan = Plan(global_batch, micro_batch, seed, shuffle, options)
            return self._hand_out(self._streamed(data, epochs, plan), epochs)
        if isinstance(data, torch.utils.data.IterableDataset) or not hasattr(data, "__len__"):
            raise InvalidInput(
                f"{type(data).__name__} has no length and no index, so a run cannot resume in the middle of it. Make "
                "it an elastic.ShardedStream, which reads shards from an offset"
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
        """The number after the last epoch that the script wants. Raises InvalidInput."""
        if epoch is not None:
            if epochs is not None or (self.epoch is not None and epoch != self.epoch):
                within = "" if self.epoch is None else f" (run.epochs is at {self.epoch})"
                raise InvalidInput(
                    f"run.loader: epoch: given {epoch!r} with epochs={epochs!r}{within}; allowed: one of the two. In a "
                    "loop over run.epochs it must be the loop's epoch"
                )
            return whole_number("epoch", epoch, 0) + 1
        if epochs is None:
            if self.epoch is None and not self.passes:
                raise InvalidInput(
                    "run.loader: epochs: given nothing; allowed: the number of all epochs of the training. Or use a "
                    "loop: `for epoch in run.epochs(3): for batch in run.loader(data, global_batch=64): …`"
                )
            return (self.epoch or 0) + 1
        epochs = whole_number("epochs", epochs, 0)
        if self.epoch is not None and epochs != self.epoch + 1:
            raise InvalidInput(
                f"run.loader: epochs: given {epochs} in a loop over run.epochs at epoch {self.epoch}; allowed: "
                "nothing. The loader yields the rest of that epoch"
            )
        return epochs

    @property
    def used(self) -> bool:
        """Whether a loader has yielded data to the training."""
        return self._order is not None

    @property
    def at_end(self) -> bool:
        """Whether the current epoch of a loop over epochs, or the last one of a phase, is consumed."""
        if self.epoch is None:
            return self._over and self.within and self.position.epoch + 1 >= self._until
        return self._over and self.position.epoch == self.epoch

    def close(self, epoch: int) -> None:
        """The loop over epochs has finished an epoch, and the code at its end."""
        self.position, self._over = Position(epoch + 1, 0, self.position.samples), False
        self._given.clear()

    def end(self) -> None:
        """The training is complete, with the code at the end of the last epoch."""
        if self._over:
            self.close(self.position.epoch)

    def enter(self, phase: int, *, passes: bool, within: bool) -> None:
        """Another training begins, without a step so far."""
        self.within, self._until = within, 0
        self.position, self._over, self._order = Position(0, 0, self.position.samples), False, None
        self.phase, self.passes, self.passed, self.epoch = phase, passes, False, None
        self._given.clear()
        self._untold, self._ended, self._told_here, self._finished = 0, False, 0, None
        self.weight, self.step_due = 1.0, True
        if self.early is not None:
            self.early.begin()

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
        """Epoch and offset of the next sample."""
        return _behind(self.position, over=self._over)

    def _go_on_in(self, order: Order, epochs: int) -> None:
        """From here on samples come in this order.

        Raises:
            InvalidInput: the current epoch was begun in another order.
        """
        epoch, offset = self._begins
        if epoch >= epochs:
            if self._steps:  # else the run was restarted at its end, which needs no warning
                log.warning(
                    "run.loader gives nothing: %d epochs are over, and epochs=%d is the number of all epochs of the "
                    "run. To train on the data again, give a larger number. To look at data without training, use a "
                    "DataLoader",
                    *(epoch, epochs),
                )
            return
        if offset and self._order not in (None, order):
            raise InvalidInput(
                f"the run has consumed {offset} samples of epoch {epoch} in one order of the data ({self._order}). The "
                f"script now has ({order}): some samples would come twice and others never. Use the former "
                "data, and change it when the epoch is over; or begin a run with another URI"
            )
        self._order = order

    def state_dict(self) -> dict[str, Any]:
        """The order that `position` refers to, for a checkpoint."""
        order = self._order and [self._order.length, self._order.seed]
        early = {} if self.early is None else {"early_stop": self.early.state_dict()}
        return {
            "order": order,
            "over": self._over,
            "replaced": [[*one] for one in self.replaced.made],
            **early,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the order from a checkpoint; the position itself is in the manifest."""
        self._order = Order(*state["order"]) if state["order"] else None
        self._over = state["over"]
        self.replaced.made = [ReplacementPoint(*one) for one in state.get("replaced", ())]
        if self.early is not None and "early_stop" in state:
            self.early.load_state_dict(state["early_stop"])

    def _hand_out(self, portions: Iterator[Portion], epochs: int) -> Iterator[Any]:
        self._until = epochs
        if self.passes or epochs > self.position.epoch:
            self.begin()
        else:
            self.passed = True
        if self._ended and self._told_here:  # else the script has only looked at the data
            self._untold += len(self._given)
        self._given.clear()
        self._ended, self._told_here = False, 0
        for portion in portions:
            if self.ends_early:
                break
            self.weight, self.step_due = portion.weight, portion.completes is not None
            if portion.completes is not None:
                self._given.append(portion.completes)
                self._check_told()
            self._finished = portion.finished
            yield portion.content
            if self._finished is not None:
                raise InvalidInput(
                    "with dynamic=True, do forward and backward of each piece in `with run.accumulate(model):`"
                )
        self._ended = True

    def _check_told(self) -> None:
        """Raises InvalidInput if the script does not call `run.step`: the position would never move.

        If a script sometimes leaves out a batch, this must not end a training of days. And before the first step a
        script may look at all data.
        """
        untold, told = self._untold + len(self._given), self._steps
        if told and untold > _AHEAD and untold * 4 > told:
            raise InvalidInput(
                f"run.loader has given {told + untold} global batches, and run.step was called {told} times. A restart "
                "would train on the others again. Call run.step once for each global batch, also for one that you "
                "leave out. To accumulate gradients of several, use a larger global_batch with micro_batch. Use one "
                f"loader at a time, and look ahead by at most {_AHEAD}"
            )

    @property
    def ends_early(self) -> bool:
        """Whether the training ends early, so that its loops yield nothing more."""
        return self.early is not None and self.early.over

    @property
    def may_go_on(self) -> bool:
        """Whether this rank may still get another piece."""
        return self._finished is not None

    @contextlib.contextmanager
    def accumulate(self, model: torch.nn.Module) -> Iterator[None]:
        """See `Session.accumulate`."""
        parallel = model if isinstance(model, DistributedDataParallel) else None
        if self.may_go_on and parallel is None and not self._ranks.alone:
            raise InvalidInput(
                "dynamic=True needs a model in DistributedDataParallel. In others ranks wait for each other in each "
                "forward pass, but here ranks have different numbers of passes"
            )
        with contextlib.nullcontext() if parallel is None or self.step_due else parallel.no_sync():
            yield
        if self.finish_piece() and parallel is not None:
            exchange(parallel)

    def finish_piece(self) -> bool:
        """The script has finished a piece; returns whether all ranks must now exchange their gradients."""
        finished, self._finished = self._finished, None
        given = finished() if finished is not None else None
        if given is not None:
            self._given.append(given)
            self.step_due = True
            self._check_told()
        return given is not None

    @property
    def ahead(self) -> tuple[int, int]:
        """Epoch and offset after the last sample that a loader has yielded, with or without a step."""
        return _behind(last := self._given[-1], over=last.over) if self._given else self._begins

    def stepped(self, step: int) -> None:
        """A step was done with the oldest global batch.

        Raises:
            InvalidInput: the script does not have all its pieces yet.
        """
        if not self._given:
            if not self.step_due:
                raise InvalidInput(
                    "run.step was called before the last piece of a global batch. With micro_batch a step has several "
                    "pieces: call it if run.step_due is true"
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
