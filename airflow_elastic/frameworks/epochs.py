"""Batches for a framework that holds the loop: it iterates once for each epoch, and never knows of interruptions.

A framework may fetch ahead, and goes on after a step with what belongs to it: it logs, evaluates, ends the epoch. So a
step is told to the run, which may save or stop there, when the framework comes for what follows it.
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

#: What a loader of torch's was given that ours is given, too. Its workers live as long as an epoch.
_OPTIONS = ("collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor")

_NOTHING = object()


def most_at_once(loader: Any) -> int | None:
    """The most samples that a device takes at once: a loader's batch size.

    Raises:
        InvalidInput: the loader has none.
    """
    if isinstance(loader, torch.utils.data.DataLoader) and loader.batch_size is None:
        raise InvalidInput(
            f"training data: given a {type(loader).__name__} without batch_size, as one with a batch_sampler is, or "
            "one that was prepared; allowed: a DataLoader as it was made, with batch_size: the most samples that "
            "a device takes at once"
        )
    return getattr(loader, "batch_size", None)


class Epochs:
    """An iterable of batches: of what is left of an epoch where the run stands within one, of a whole one otherwise.

    Args:
        run: this rank's session.
        loader: of torch's; its data set counts, and how it collates and fetches. Which samples in which order does not.
        global_batch: samples of one optimizer step, all ranks together.
        micro_batch: the most samples that a rank gets at once. Default: its whole share of a global batch.
        seed: of the order of samples.
        shuffle: False keeps the order of the data set.
        blank: what to make of a batch that only fills up, where there are fewer samples than ranks and pieces, and
            counts nothing. Default: it stays as it is.

    Attributes:
        pieces: batches that a rank accumulates gradients of for one step.
        over: whether training has come to its end, and there are no more.
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
                "that has both. For others there is run.loader with an elastic.ShardedStream, in a loop of your own"
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
            if given is None:  # what is left over of an epoch before this one is nothing
                given = iter(self._run.loader(self._data, epochs=epoch + 1, **self._options))
            content = next(given, _NOTHING)
            if content is _NOTHING:  # the phase is complete
                return
            self._weights.append(self._run.weight * self.pieces)
            yield self._blank(content) if self._blank and not self._run.weight else content

    @property
    def whole(self) -> int:
        """Batches of a whole epoch."""
        return self.pieces * self._steps_from(0)

    def _next(self) -> tuple[int, int]:
        """Epoch and offset of the batch that comes next."""
        epoch, offset = self._run.ahead
        return (epoch, offset) if offset < self._length else (epoch + 1, 0)

    def left(self, epochs: float) -> int:
        """Optimizer steps that are left of so many epochs, those behind included."""
        epoch, offset = self._next()
        each = self._steps_from(0)
        return max(0, math.ceil(epochs * each) - (epoch + 1) * each + self._steps_from(offset))

    def _steps_from(self, offset: int) -> int:
        """To the end of the epoch."""
        return len(range(offset, self._length, self._global_batch))

    @property
    def behind(self) -> float:
        """Epochs that are behind what was given."""
        epoch, offset = self._next()
        return epoch + offset / self._length

    @property
    def given(self) -> int:
        """Batches of the epoch at hand that were given before, as many as they are at this number of ranks."""
        _, offset = self._next()
        return self.pieces * len(range(0, offset, self._global_batch))

    def weight(self) -> float:
        """What the mean loss counts of the batch that is trained on next, where the mean over pieces is taken."""
        return self._weights.popleft()

    def stepped(self, loss: torch.Tensor | float | None, metrics: Mapping[str, float]) -> None:
        """An optimizer step is done, and the framework not yet with what belongs to it."""
        self.settle()
        self._done = lambda: self._run.step(loss, **metrics)

    def settle(self) -> None:
        """What belonged to the last step is done, too: tell the run of it. Does not return where the run is stopped."""
        done, self._done = self._done, None
        if done is not None:
            done()
