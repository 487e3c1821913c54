"""Batches for a framework with its own loop, which iterates once an epoch and does not see interruptions.

A framework may fetch batches ahead. After a step it logs, evaluates, or ends the epoch. So the step is reported to
the run, which may save or stop, only when the framework asks for the next batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from airflow_elastic.runtime.arguments import whole_number
from airflow_elastic.runtime.data.sampler import count_pieces
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.errors import InvalidInput

#: Options that are copied from a DataLoader to the elastic loader. Its worker processes end with the epoch.
_OPTIONS = ("collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor")

_NOTHING = object()


def most_at_once(loader: Any) -> int | None:
    """The most samples that a device takes at once: the loader's batch size.

    Raises:
        InvalidInput: the loader has no batch size.
    """
    if isinstance(loader, torch.utils.data.DataLoader) and loader.batch_size is None:
        raise InvalidInput(
            f"training data: given a {type(loader).__name__} without batch_size, because it has a batch_sampler or "
            "was prepared. Allowed: a DataLoader that was not prepared, with batch_size, the most samples that "
            "a device takes at once"
        )
    return getattr(loader, "batch_size", None)


class Epochs:
    """An iterable of batches: the rest of the current epoch, or a whole epoch if none has begun.

    Args:
        run: this rank's session.
        loader: a DataLoader. Its data set, collating and fetching are used; the run chooses samples and their order.
        global_batch: samples of one optimizer step, all ranks together.
        micro_batch: the most samples that a rank gets at once. Default: its whole share of a global batch.
        seed: seed of the order of samples. Default: 0.
        shuffle: False keeps the order of the data set. Default: True.
        blank: changes a batch with weight 0, which only fills up if there are fewer samples than ranks and pieces.
            Default: such a batch is not changed.

    Attributes:
        pieces: number of batches over which a rank accumulates gradients for one step.
        over: whether training is complete and no batch is left.
        on_end: is called when a step was the last one, because the training ends early.
    """

    def __init__(
        self,
        run: Session,
        loader: Any,
        *,
        global_batch: int,
        micro_batch: int | None,
        seed: int = 0,
        shuffle: bool = True,
        blank: Callable[[Any], Any] | None = None,
    ) -> None:
        if not isinstance(loader, torch.utils.data.DataLoader):
            raise InvalidInput(
                f"training data: given {type(loader).__name__}; allowed: one torch.utils.data.DataLoader"
            )
        data = loader.dataset
        if isinstance(data, torch.utils.data.IterableDataset) or not hasattr(data, "__len__"):
            raise InvalidInput(
                f"training data: given {type(data).__name__}, which has no length or no index; allowed: a data set "
                "that has both. For others use run.loader with an elastic.ShardedStream, in a loop of your own"
            )
        global_batch = whole_number("global_batch", global_batch, 1, "training data")
        self._run, self._data, self._blank = run, data, blank
        self._length, self._global_batch = len(data), global_batch
        self._options = {
            "global_batch": global_batch,
            "seed": seed,
            "shuffle": shuffle,
            "micro_batch": micro_batch,
            "even_pieces": True,
            **{name: getattr(loader, name) for name in _OPTIONS},
        }
        self.pieces = count_pieces(-(-global_batch // run.world_size), micro_batch)
        self.over = False
        self.on_end: Callable[[], None] = lambda: None
        self._weights: deque[float] = deque()
        self._done: Callable[[], None] | None = None

    def __len__(self) -> int:
        _, offset = self._next()
        return 0 if self.over else self.pieces * self._steps_from(offset)

    def __iter__(self) -> Iterator[Any]:
        epoch, batches = self._next()[0], len(self)
        self._weights.clear()
        given: Iterator[Any] | None = None
        for _ in range(batches):
            self.settle()
            if self._run.stopping:
                return
            if given is None:  # after settle(), so that the step before belongs to the epoch before
                given = iter(self._run.loader(self._data, epochs=epoch + 1, **self._options))
            content = next(given, _NOTHING)
            if content is _NOTHING:  # the phase is complete
                return
            self._weights.append(self._run.weight * self.pieces)
            yield self._blank(content) if self._blank and not self._run.weight else content

    @property
    def whole(self) -> int:
        """Number of batches of a whole epoch."""
        return self.pieces * self._steps_from(0)

    def _next(self) -> tuple[int, int]:
        """Epoch and offset of the next batch."""
        epoch, offset = self._run.ahead
        return (epoch, offset) if offset < self._length else (epoch + 1, 0)

    def left(self, epochs: float) -> int:
        """Optimizer steps that are left of a training with so many epochs in total."""
        epoch, offset = self._next()
        each = self._steps_from(0)
        return max(0, math.ceil(epochs * each) - (epoch + 1) * each + self._steps_from(offset))

    def _steps_from(self, offset: int) -> int:
        """Optimizer steps from an offset to the end of the epoch."""
        return len(range(offset, self._length, self._global_batch))

    @property
    def behind(self) -> float:
        """Epochs that are done, with fractions."""
        epoch, offset = self._next()
        return epoch + offset / self._length

    @property
    def given(self) -> int:
        """Batches of the current epoch that are done, counted in batches of this number of ranks."""
        _, offset = self._next()
        return self.pieces * len(range(0, offset, self._global_batch))

    def weight(self) -> float:
        """Weight of the next batch's mean loss, if the framework takes the mean over pieces."""
        return self._weights.popleft()

    def stepped(self, loss: torch.Tensor | float | None, metrics: Mapping[str, float]) -> None:
        """Note that an optimizer step is done. It is reported by `settle`, when the framework has finished with it."""
        self.settle()
        self._done = lambda: self._run.step(loss, **metrics)

    def settle(self) -> None:
        """Report the last step to the run, if it is not reported yet. Does not return when the run must stop."""
        done, self._done = self._done, None
        if done is not None:
            done()
            if self._run.stopping:
                self.over = True
                self.on_end()
