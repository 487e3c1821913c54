"""Workers that save without end until they are killed: real processes, an agent and its trainer, forked off a test.

What a checkpoint must hold follows from its step and the attempt that wrote it, so that any byte of another one shows.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import torch

from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.runtime.saving import Position, Saver, Stateful
from airflow_elastic.runtime.stage import Stage
from tests.support.saving import Worker


def objects(width: int) -> Stateful:
    """A model of `width` times 64 parameters and some, and its optimizer, with states."""
    model = torch.nn.Linear(64, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    return Stateful(model, (optimizer,), {})


def fill(what: Stateful, step: int, attempt: int) -> None:
    """What it holds after a step of an attempt."""
    generator = torch.Generator().manual_seed(step * 1_000_003 + attempt)
    for parameter in what.model.parameters():
        moment = what.optimizers[0].state[parameter]["momentum_buffer"]
        for tensor in (parameter.data, moment):
            tensor.copy_(torch.rand(tensor.shape, generator=generator))


def holds(what: Stateful, step: int, attempt: int) -> bool:
    """Whether it holds exactly that."""
    expected = objects(len(what.model.bias))  # type: ignore[arg-type]
    fill(expected, step, attempt)
    return all(
        torch.equal(a, b)
        and torch.equal(
            what.optimizers[0].state[a]["momentum_buffer"], expected.optimizers[0].state[b]["momentum_buffer"]
        )
        for a, b in zip(what.model.parameters(), expected.model.parameters(), strict=True)
    )


class Saving:
    """An agent and its trainer, which saves step after step.

    Args:
        uri: the run.
        width: of the model.
        keep: how many checkpoints stay.
        attempt: number of their attempt.
        first: the first step that is saved.
        scratch: a folder for the worker's own files.
    """

    def __init__(self, uri: str, attempt: int, first: int, scratch: Path, *, width: int, keep: int) -> None:
        news, tell = os.pipe()
        self.agent = os.fork()
        if self.agent == 0:
            os.close(news)
            _be(lambda: _agent(uri, attempt, first, scratch, tell, width, keep))
        os.close(tell)
        self._news = os.fdopen(news, "r")
        self.trainer = int(self._news.readline())
        self.staged = first - 1

    def at(self, step: int) -> None:
        """Wait until the trainer has staged this step, or nobody lives any more."""
        while self.staged < step and (line := self._news.readline()):
            self.staged = int(line)

    def kill(self, who: str) -> None:
        """Kill -9 `trainer`, `agent` or `both`, and wait for the end of them all.

        An agent without a trainer writes what it holds, and ends. A trainer without an agent is killed like its pod.
        """
        victims = {"trainer": [self.trainer], "agent": [self.agent]}.get(who, [self.trainer, self.agent])
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        if who == "agent":
            os.kill(self.trainer, signal.SIGKILL)
        for line in self._news:  # until both have closed it
            self.staged = int(line)
        os.waitpid(self.agent, 0)
        self._news.close()


def _be(work) -> None:  # type: ignore[no-untyped-def]
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def _agent(uri: str, attempt: int, first: int, scratch: Path, tell: int, width: int, keep: int) -> None:
    tempfile.tempdir = str(scratch)
    torch.set_num_threads(1)
    worker = Worker(uri, attempt=attempt, keep_last=keep)
    trainer = os.fork()
    if trainer == 0:
        _be(lambda: _train(worker, attempt, first, tell, width))
    os.write(tell, f"{trainer}\n".encode())
    worker.persister.start()
    os.waitpid(trainer, 0)
    worker.persister.flush()
    worker.persister.stop()


def _train(worker: Worker, attempt: int, first: int, tell: int, width: int) -> None:
    os.environ.update(worker.node.slots.environment())
    stage = Stage.found(0)
    assert stage is not None
    saver = Saver(Ranks(0, 1, None), generation=1, stage=stage, words=worker.words)
    what = objects(width)
    for step in range(first, first + 100_000):
        fill(what, step, attempt)
        saver.save(what, step, Position(0, step, step), reason="script", metrics={})
        os.write(tell, f"{step}\n".encode())
