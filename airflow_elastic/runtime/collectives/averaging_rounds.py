"""Rounds of averaging that do not wait for a late rank.

Each rank has a thread beside its training, and all these threads take part in each round. The training of a late rank
has not come to the round yet. Then its thread gives zeros with a weight of 0, and takes the mean of the others. So a
late rank does not delay the others, and its work since then counts in the next round.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
import time
import uuid
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import DistStoreError

from airflow_elastic.runtime.collectives.process_group import Collectives

_OPEN, _OVER = "open", "over"

#: How long the thread waits within torch, which cannot be interrupted; and between two looks at a round.
_WAIT = timedelta(seconds=0.5)
_POLL_SECONDS = 0.002

_CONNECT = timedelta(seconds=60)


class AveragingRounds:
    """The rounds of one rank, from the first to `end`. Made by all ranks together.

    Args:
        ranks: this rank among the others; at least two.
        first: number of the first round.
        count: number of values that a rank gives.
        dtype: of these.
        patience: seconds after the first rank has come to a round until the round begins without the others. None: it
            waits for all.
    """

    def __init__(
        self, ranks: Collectives, first: int, count: int, dtype: torch.dtype, patience: float | None
    ) -> None:
        self._ranks, self._next, self._patience = ranks, first, patience
        self._count, self._dtype = count, dtype
        group = dist.new_group(backend="gloo")
        self._group = group if isinstance(group, dist.ProcessGroup) else None
        # The thread has its own connection: while it waits for the store, no other thread can use this one.
        name = ranks.from_first(
            lambda: f"averaging/{uuid.uuid4().hex}"
        )  # a store may outlive ranks, with their keys
        self._store, self._waiting = _connected(name), _connected(name)
        self._given: tuple[int, torch.Tensor] | None = None
        self._begun = self._done = first - 1
        self._mean: torch.Tensor | None = None
        self._error: BaseException | None = None
        self._changed, self._leaving = threading.Condition(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="averaging", daemon=True)
        self._thread.start()
        # If a thread is in torch when the interpreter ends, a failed script looks like an aborted one.
        atexit.register(self._leave)

    def give(self, number: int, values: torch.Tensor) -> bool:
        """Give this rank's values to a round; False if it has begun without them.

        Args:
            number: of the round.
            values: of one dimension, on the CPU. They must not change afterwards.
        """
        with self._changed:
            if self._begun >= number:
                return False
            self._given = (number, values)
        self._store.set(f"{number}/came/{self._ranks.rank}", "")
        self._store.set(f"{number}/first", "")
        return True

    def mean(self, number: int) -> tuple[int, torch.Tensor]:
        """Wait for a round. Returns the number of the newest round that is done, and its mean.

        Raises:
            RuntimeError: the ranks have lost each other.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._done >= number or self._error is not None)
            if self._error is not None or self._mean is None:
                raise RuntimeError(f"round {number} of averaging has failed: {self._error}") from self._error
            return self._done, self._mean

    def end(self) -> None:
        """No more rounds. All ranks call this together, when each round that has begun is done."""
        with self._changed:
            number = self._done + 1
        if self._ranks.rank == 0:
            self._store.set(f"{number}/begin", _OVER)
            self._store.set(f"{number}/first", "")
        self._thread.join()
        atexit.unregister(self._leave)

    def _leave(self) -> None:
        self._leaving.set()
        self._thread.join(5.0)

    # -- in the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._begins(self._next):
                self._meet(self._next)
                self._next += 1
        except _Leaving:
            pass
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _begins(self, number: int) -> bool:
        """Wait until this round begins, which the first rank decides; False if there are no more rounds."""
        begin = f"{number}/begin"
        if self._ranks.rank == 0:
            self._wait([f"{number}/first"])
            if not self._waiting.check([begin]):
                came = [f"{number}/came/{rank}" for rank in range(self._ranks.world_size)]
                self._wait(came, math.inf if self._patience is None else self._patience)
                self._waiting.set(begin, _OPEN)
                self._forget(number - 1)  # all threads have taken part in it
        self._wait([begin])
        return self._waiting.get(begin).decode() == _OPEN

    def _meet(self, number: int) -> None:
        with self._changed:
            self._begun = number
            values = self._given[1] if self._given is not None and self._given[0] == number else None
        mine = torch.zeros(self._count + 1, dtype=self._dtype)
        if values is not None:
            mine[:-1], mine[-1] = values, 1.0
        work = dist.all_reduce(mine, group=self._group, async_op=True)
        while work is not None and not work.is_completed():
            self._stay()
            time.sleep(_POLL_SECONDS)
        if work is not None:
            work.wait()  # raises what went wrong
        if not mine[-1]:
            raise RuntimeError("no rank has given values")
        with self._changed:
            self._given = None
            self._done, self._mean = number, mine[:-1].div_(mine[-1].clone())
            self._changed.notify_all()

    def _forget(self, number: int) -> None:
        for what in ("first", "begin", *(f"came/{rank}" for rank in range(self._ranks.world_size))):
            self._waiting.delete_key(f"{number}/{what}")

    def _wait(self, keys: list[str], seconds: float = math.inf) -> None:
        """Wait until all keys are set, or for so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._stay()
            with contextlib.suppress(DistStoreError):  # not yet
                self._waiting.wait(keys, min(_WAIT, timedelta(seconds=min(left, 1.0))))
                return

    def _stay(self) -> None:
        if self._leaving.is_set():
            raise _Leaving


class _Leaving(Exception):
    """The interpreter is about to end."""


def _connected(name: str) -> PrefixStore:
    """The store of the rendezvous. It is run by an agent (torchrun's or this project's), or by the first rank."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_CONNECT)
    return PrefixStore(name, store)
