"""Workers that save without end until they are killed: real processes, an agent and its trainer, forked off a test.

What a checkpoint must hold follows from its step and the attempt that wrote it, so that any byte of another one shows.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from airflow_elastic.runtime.checkpoint.save.save import Position, Saver
from airflow_elastic.runtime.checkpoint.save.staging_area import StagingArea
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.tiers.shared_memory import MEMORY
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.support.training.saving import SavingWorker


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
    """Workers that save step after step: of each an agent and its trainer.

    Args:
        uri: the run.
        attempt: number of their attempt.
        first: the first step that is saved.
        scratch: a folder for the workers' own files.
        width: of the model.
        keep: how many checkpoints stay.
        every: of older ones, the first of every so many steps stays, too.
        of: how many workers; trainers of several wait for each other after each step.
        memory: what each trainer saves, into its agent's memory alone, before it stands still; instead of all that.
    """

    def __init__(
        self,
        uri: str,
        attempt: int,
        first: int,
        scratch: Path,
        *,
        width: int,
        keep: int,
        every: int | None = None,
        of: int = 1,
        memory: Sequence[Sequence[int]] = (),
    ) -> None:
        news, tell = os.pipe()
        peers = [*socket.socketpair()] if of == 2 else []
        self.agents = []
        for index in range(of):
            if (agent := os.fork()) == 0:
                os.close(news)
                policy = CheckpointPolicy(keep_last=keep, keep_every_steps=every)
                plan = _Plan(uri, attempt, first, scratch, tell, width, policy, index, of, memory[index:][:1])
                _be(lambda plan=plan: _agent(plan, peers))  # type: ignore[misc]
            self.agents.append(agent)
        os.close(tell)
        for one in peers:
            one.close()
        self._news = os.fdopen(news, "r")
        self._staged, self._trainers = [first - 1] * of, [0] * of
        while not all(self._trainers):
            assert self._listen(), (
                "an agent has ended before it had a trainer: see its traceback in the output"
            )

    @property
    def staged(self) -> int:
        """The newest step that all trainers have staged."""
        return min(self._staged)

    def at(self, step: int) -> None:
        """Wait until all trainers have staged this step, or nobody lives any more."""
        while self.staged < step and self._listen():
            pass

    def each_at(self, *steps: int) -> None:
        """Wait until each trainer has staged its step."""
        while any(staged < step for staged, step in zip(self._staged, steps, strict=True)):
            assert self._listen()

    def kill(self, who: str, index: int = 0) -> None:
        """Kill -9 `trainer`, `agent` or `both` of a worker, or `all` there are, and wait for the end of them all.

        An agent without a trainer writes what it holds, and ends. A trainer without an agent is killed like its pod,
        and one without a peer ends by itself.
        """
        if who in ("trainer", "both", "all"):
            os.kill(self._trainers[index], signal.SIGKILL)
        if who in ("agent", "both", "all"):
            os.kill(self.agents[index], signal.SIGKILL)
        if who == "agent":
            os.kill(self._trainers[index], signal.SIGKILL)
        if who == "all":
            for pid in (*self._trainers[:index], *self._trainers[index + 1 :]):
                os.kill(pid, signal.SIGKILL)
            for pid in (*self.agents[:index], *self.agents[index + 1 :]):
                os.kill(pid, signal.SIGKILL)
        self.end()

    def kill_trainers(self) -> None:
        """All of them; agents write what they hold."""
        for pid in self._trainers:
            os.kill(pid, signal.SIGKILL)
        self.end()

    def end(self) -> None:
        """Wait for the end of them all."""
        while self._listen():
            pass
        for agent in self.agents:
            os.waitpid(agent, 0)
        self._news.close()

    def _listen(self) -> bool:
        """Hear one word; whether there was one: all of them have closed it otherwise."""
        if not (line := self._news.readline()):
            return False
        what, index, number = line.split()
        (self._trainers if what == "trainer" else self._staged)[int(index)] = int(number)
        return True


@dataclass(frozen=True)
class _Plan:
    uri: str
    attempt: int
    first: int
    scratch: Path
    tell: int
    width: int
    policy: CheckpointPolicy
    index: int
    of: int
    memory: Sequence[Sequence[int]]

    def told(self, what: str, number: int) -> None:
        os.write(self.tell, f"{what} {self.index} {number}\n".encode())


def _be(work) -> None:  # type: ignore[no-untyped-def]
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _agent(plan: _Plan, peers: list[socket.socket]) -> None:
    tempfile.tempdir = str(plan.scratch)
    torch.set_num_threads(1)
    worker = SavingWorker(plan.uri, attempt=plan.attempt, policy=plan.policy, index=plan.index, of=plan.of)
    trainer = os.fork()
    if trainer == 0:
        peer = peers.pop(plan.index) if peers else None
        for one in peers:  # whose end is to be seen
            one.close()
        _be(lambda: _train(plan, worker, peer))
    for one in peers:
        one.close()
    plan.told("trainer", trainer)
    worker.persister.start()
    os.waitpid(trainer, 0)
    worker.persister.flush()
    worker.persister.stop()


def _train(plan: _Plan, worker: SavingWorker, peer: socket.socket | None) -> None:
    os.environ.update(worker.node.slots.environment())
    stage = StagingArea.found(0)
    assert stage is not None
    saver = Saver(Collectives(plan.index, plan.of, None), generation=1, stage=stage, words=worker.words)
    what = objects(plan.width)
    for step in plan.memory[0] if plan.memory else range(plan.first, plan.first + 100_000):
        fill(what, step, plan.attempt)
        reason = MEMORY if plan.memory else "script"
        saver.save(what, step, Position(0, step, step), reason=reason, metrics={})
        plan.told("staged", step)
        if peer is not None and not plan.memory:
            try:
                peer.send(b".")
                alive = peer.recv(1)
            except ConnectionError:
                return
            if not alive:
                return
    signal.pause()
