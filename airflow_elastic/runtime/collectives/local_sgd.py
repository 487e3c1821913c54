"""Local SGD: each rank trains by itself, and from time to time all take the mean of their weights.

This is for slow networks, where the exchange of gradients in each step would take longer than computing them. Ranks
exchange weights once in so many steps, with any optimizer. A rank that is late for a round takes the round's mean, and
adds its own change since the last one. That change counts in the next round.

From: Stich, "Local SGD Converges Fast and Communicates Little" (ICLR 2019). Lin et al., "Don't Use Large Mini-Batches,
Use Local SGD" (ICLR 2020). The limit on the distance between ranks comes from another paper. It is Ho et al., "More
Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (NIPS 2013).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from airflow_elastic.runtime.arguments import seconds, whole_number
from airflow_elastic.runtime.collectives.averaging_rounds import AveragingRounds
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec.errors import InvalidInput

log = logging.getLogger(__name__)

#: Modules that make ranks wait for each other in forward or backward passes. By name, because imports take time.
_TOGETHER = {"DistributedDataParallel", "FullyShardedDataParallel", "SyncBatchNorm"}


class LocalSGD:
    """The averaging of one rank. All ranks create it together, and then have the same weights.

    Args:
        model: its trained parameters, and its buffers of floating point numbers, are averaged. All ranks begin with
            those of the first.
        optimizers: their states are averaged for a save, so that the checkpoint belongs to all ranks.
        ranks: this rank among the others.
        step: the run's current step.
        every: steps from one round to the next.
        patience: seconds after the first rank has come to a round until the round begins without the others. None: it
            waits for all.

    Raises:
        InvalidInput: such a model exchanges gradients or weights already; or a number is not allowed.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        ranks: Collectives,
        *,
        step: int,
        every: int,
        patience: float | None,
    ) -> None:
        every = whole_number("every", every, 1, "run.average")
        _check(model, patience)
        self._model, self._optimizers, self._ranks, self._every = model, optimizers, ranks, every
        self._adopted, self._missed = step // every, 0
        self._anchor, self._rounds = torch.empty(0), None
        if not ranks.alone:
            self._take_the_first_ones()
            self._anchor = _flat(self._weights())
            count, dtype = self._anchor.numel(), self._anchor.dtype
            self._rounds = AveragingRounds(ranks, self._adopted + 1, count, dtype, patience)

    def due(self, step: int) -> bool:
        """Whether there is a round after this step."""
        return step % self._every == 0

    def average(self, step: int) -> None:
        """The round after this step: wait for it, and take its mean.

        Raises:
            RuntimeError: the ranks have lost each other.
        """
        if self._rounds is None:
            return
        self._check_size()
        number = step // self._every
        if number <= self._adopted:
            return  # this rank was late for the round before, and has taken the mean of a newer one
        mine = _flat(self._weights())
        in_time = self._rounds.give(number, mine)
        self._adopted, mean = self._rounds.mean(number)
        if in_time:
            _set(self._weights(), mean)
        else:
            own = mean + (mine - self._anchor)
            # Not for buffers: a variance plus a difference need not be a variance. The value halfway is one.
            at = sum(one.numel() for one in self._trained())
            own[at:] = (mean[at:] + mine[at:]) / 2
            _set(self._weights(), own)
            self._missed += 1
            log.warning(
                "step %d: this rank was late for round %d of averaging; what it has done counts in the next one "
                "(late for %d so far)",
                *(step, number, self._missed),
            )
        self._anchor = mean  # and not a late rank's new weights: it still has to give its own change

    def settle(self) -> None:
        """Give all ranks the same weights and optimizer states. All of them call this, at the same step.

        Raises:
            InvalidInput: the optimizers of ranks keep states for different parameters.
        """
        if self._rounds is None:
            return
        self._check_size()
        everything = [*self._weights(), *self._states()]
        mean = _flat(everything)
        most, fewest = self._ranks.largest(mean.numel(), -mean.numel())()
        if most != -fewest:
            raise InvalidInput(
                f"the optimizers of one rank keep {most:.0f} numbers and those of another {-fewest:.0f}. There is no "
                "mean of numbers that only some have. Make each rank use all parameters before the first save"
            )
        dist.all_reduce(mean, group=self._ranks.group)
        _set(everything, mean.div_(self._ranks.world_size))
        self._anchor = _flat(self._weights())

    def _check_size(self) -> None:
        now, had = sum(one.numel() for one in self._weights()), self._anchor.numel()
        if now != had:
            raise InvalidInput(
                f"run.average: the model has {now} numbers that are trained, and had {had} when averaging began. There "
                "is no mean of numbers that only some ranks have. Change the shape of a model before run.average, or "
                "train with DistributedDataParallel"
            )

    def end(self) -> None:
        """There is nothing more to average. All ranks call this together."""
        if self._rounds is not None:
            self._rounds.end()
            self._rounds = None

    def _take_the_first_ones(self) -> None:
        for one in (*self._model.parameters(), *self._model.buffers()):
            values = one.detach().cpu()
            dist.broadcast(values, src=0, group=self._ranks.group)
            one.data.copy_(values)

    def _trained(self) -> list[torch.Tensor]:
        own = (one for one in self._model.parameters() if one.requires_grad)
        return [one.detach() for one in own if one.is_floating_point()]

    def _weights(self) -> list[torch.Tensor]:
        return [*self._trained(), *(one for one in self._model.buffers() if one.is_floating_point())]

    def _states(self) -> Iterable[torch.Tensor]:
        """The states of optimizers, in the same order on each rank, without their counts of steps."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    for name, one in sorted(optimizer.state.get(parameter, {}).items()):
                        if name != "step" and torch.is_tensor(one) and one.is_floating_point():
                            yield one


def _check(model: torch.nn.Module, patience: float | None) -> None:
    if patience is not None:  # None waits for all ranks
        seconds("patience", patience, "run.average")
    found = {base.__name__ for one in model.modules() for base in type(one).__mro__} & _TOGETHER
    if any(isinstance(one, DTensor) for one in model.parameters()):
        found.add("parameters that are sharded over ranks")
    if found:
        raise InvalidInput(
            f"model: given one with {', '.join(sorted(found))}, whose ranks exchange something with each step; "
            "allowed: the plain module. Each rank trains it by itself"
        )


def _flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """All of them in one tensor on the CPU, in float64 if one of them has it, else in float32."""
    parts = [one.detach().reshape(-1).cpu() for one in tensors]
    wide = any(one.dtype == torch.float64 for one in parts)
    dtype = torch.float64 if wide else torch.float32
    return torch.cat([one.to(dtype) for one in parts]) if parts else torch.empty(0, dtype=dtype)


@torch.no_grad()
def _set(tensors: Iterable[torch.Tensor], values: torch.Tensor) -> None:
    begin = 0
    for one in tensors:
        part = values[begin : begin + one.numel()]
        one.copy_(part.view(one.shape))
        begin += one.numel()
