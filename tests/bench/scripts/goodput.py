"""Train a small transformer without end under one of three systems, and leave a trace of the steps.

`goodput.py HOW FOLDER SECONDS`: HOW is `ours`, `torchrun` or `dlrover`, and decides on init, save and restore alone.
SECONDS: mean time between failures, from which `torchrun` takes its interval. Each rank writes a line for each step to
`FOLDER/trace/BEGAN-PID-RANK`: step, began, ended (epoch seconds). A step ends before what follows it is saved.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

#: Of `ours` and `dlrover` in memory, and of `dlrover` to the disk. A copy to memory takes some 20 ms and a step 100, so
#: Young's interval has some 20 steps with a failure every 2 minutes.
MEMORY_STEPS, DISK_STEPS = 20, 100

WORDS, WIDTH, LAYERS, TOKENS = 1000, 256, 6, 64


class Model(nn.Module):
    """A transformer of 5 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(x)))


#: What a system does: the step that it has restored, and what follows each step (its number, and the loss).
Keeping = tuple[int, Callable[[int, torch.Tensor], None]]


def ours(model: nn.Module, optimizer: torch.optim.Optimizer, run: Any) -> Keeping:
    """Memory after every few steps, by the run's specification; storage by its default."""
    run.restore(model, optimizer)
    return run.steps, lambda _, loss: run.step(loss)


def torchrun(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, failures: float) -> Keeping:
    """`torch.save` by rank 0 at Young's interval, sqrt(2 x cost x time between failures); its cost is measured."""
    path, step = folder / "state.pt", 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    due = [time.monotonic()]

    def save(step: int, _: torch.Tensor) -> None:
        if dist.get_rank() == 0 and time.monotonic() >= due[0]:
            began = time.monotonic()
            part = path.with_suffix(".part")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
            part.replace(path)
            now = time.monotonic()
            due[0] = now + (2 * (now - began) * failures) ** 0.5

    return step, save


def dlrover(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> Keeping:
    """Flash checkpoint as its documentation has it: often to memory, now and then to the disk."""
    from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

    saver, step = DdpCheckpointer(str(folder / "flash")), 0
    if state := saver.load_checkpoint():
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]

    def save(step: int, _: torch.Tensor) -> None:
        if step % MEMORY_STEPS and step % DISK_STEPS:
            return
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        where = StorageType.MEMORY if step % DISK_STEPS else StorageType.DISK
        saver.save_checkpoint(step, state, storage_type=where)

    return step, save


def train(how: str, folder: Path, failures: float, run: Any) -> None:
    """Build the model, restore it, and train until this process is killed or its peers are."""
    torch.manual_seed(1)
    plain = Model()
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if how == "ours":
        step, after = ours(model, optimizer, run)
    elif how == "torchrun":
        step, after = torchrun(plain, optimizer, folder, failures)
    else:
        step, after = dlrover(plain, optimizer, folder)
    rank = dist.get_rank()
    trace = folder / "trace"
    trace.mkdir(exist_ok=True)
    with (trace / f"{time.time_ns()}-{os.getpid()}-{rank}").open("w", buffering=1) as file:
        while True:
            began, step = time.time(), step + 1
            x = torch.randint(WORDS, (2, TOKENS), generator=torch.Generator().manual_seed(2 * step + rank))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
            loss.backward()
            optimizer.step()
            file.write(f"{step} {began} {time.time()}\n")
            after(step, loss)


def main(how: str, folder: Path, failures: float) -> None:
    torch.set_num_threads(1)
    if how == "ours":
        import airflow_elastic.runtime as elastic

        run = elastic.init(total_steps=10**9)
        run.train(train, how, folder, failures, run)
    else:
        dist.init_process_group("gloo")
        train(how, folder, failures, None)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
