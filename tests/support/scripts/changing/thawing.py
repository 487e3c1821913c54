"""Layers thaw within an epoch, by a callback or in a loop: `thawing.py huggingface|accelerate OUT [--die=STEP]`.

At its end all ranks have the same weights, and rank 0 writes them to OUT.
`--trace FILE --epochs N`: for other numbers of ranks, as shape_trace.py has it.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from shape_trace import Trace
from torch import nn
from torch.utils.data import DataLoader

BATCH, THAWED = 8, 7  # five steps an epoch

parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=("huggingface", "accelerate"))
parser.add_argument("out", type=Path)
parser.add_argument("--die", type=int, action="append", default=[])
parser.add_argument("--trace")
parser.add_argument("--epochs", type=int, default=3)
given = parser.parse_args()
trace = Trace(given.trace)


class Points(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return BATCH * 5

    def __getitem__(self, index: int) -> Any:
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x.sum()}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        return {"loss": (self.head(self.body(x).tanh()).squeeze(-1) - labels).square().mean()}


def dies(step: int) -> None:
    """In the attempt whose turn it is, before the step is told."""
    if step in given.die and os.environ["AIRFLOW_ELASTIC_ATTEMPT"] == str(1 + given.die.index(step)):
        os.kill(os.getpid(), signal.SIGKILL)


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.head.parameters(), lr=0.02)  # type: ignore[arg-type]


def thaw(net: Any, optimizer: Any) -> None:
    net.body.requires_grad_(True)
    optimizer.add_param_group({"params": [*net.body.parameters()], "lr": 0.01})


def with_huggingface(net: Net) -> Any:
    from transformers import TrainerCallback, TrainingArguments

    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    class Thawing(TrainerCallback):
        begun = False

        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step and not self.begun:
                trace.restored(state.global_step, net, optimizer)
            self.begun = True
            if state.global_step == THAWED and not net.body.weight.requires_grad:
                thaw(net, trainer.optimizer)

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            trace.did(state.global_step, net, optimizer)
            dies(state.global_step)

    optimizer = optimizer_of(net)
    arguments = TrainingArguments(
        output_dir="unused", per_device_train_batch_size=BATCH, num_train_epochs=given.epochs, report_to=[],
        disable_tqdm=True, use_cpu=True, remove_unused_columns=False, max_grad_norm=0.0,
    )  # fmt: skip
    trainer = ElasticTrainer(
        global_batch=BATCH, model=net, args=arguments, train_dataset=Points(), callbacks=[Thawing()],
        optimizers=(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.8)),
    )  # fmt: skip
    trainer.train()
    return trainer


def with_accelerate(net: Net) -> Any:
    from accelerate import Accelerator

    from airflow_elastic.frameworks.accelerate import ElasticRun

    accelerator = Accelerator(cpu=True)
    run = ElasticRun(accelerator)
    model, optimizer = accelerator.prepare(net, optimizer_of(net))
    if run.restore(
        model,
        optimizer,
        rebuild=lambda resumed: thaw(net, optimizer) if resumed.step > THAWED else None,
    ):
        trace.restored(run.steps, net, optimizer.optimizer)
    loader = DataLoader(Points(), batch_size=BATCH)
    for batch in run.loader(loader, global_batch=BATCH, epochs=given.epochs):
        if run.session.steps == THAWED:
            thaw(net, optimizer)
        with accelerator.accumulate(model):
            run.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
        trace.did(run.steps + 1, net, optimizer.optimizer)
        dies(run.session.steps + 1)
        run.step()
    return run


torch.manual_seed(5)
model = Net()
found = {"huggingface": with_huggingface, "accelerate": with_accelerate}[given.kind](model)
weights = {name: one.clone() for name, one in model.state_dict().items()}
each: list[Any] = [None] * dist.get_world_size()
dist.all_gather_object(each, weights)
if not all(torch.equal(one[name], weights[name]) for one in each for name in weights):
    raise SystemExit("ranks have trained by themselves")
if dist.get_rank() == 0:
    torch.save(weights, given.out)
if given.trace:
    trace.end(model)
found.finish()
