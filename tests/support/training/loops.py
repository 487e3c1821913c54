"""Loops that the documentation shows, as scripts that run: with small data, and with what their text leaves out."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.runs.pages import Block, blocks

#: Steps of an epoch of a loop over `data`.
STEPS = 3

_TRAINS = re.compile(r"\brun\.step\(|\btrainer\.(fit|train)\(")

_SUPPLIES = """
import itertools
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import airflow_elastic.runtime as elastic

torch.manual_seed(3)
x = torch.randn(240, 4)
y = x.argmax(1)
data, more, held_out = TensorDataset(x[:160], y[:160]), TensorDataset(x[:40], y[:40]), (x[160:], y[160:])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.head(torch.nn.functional.dropout(self.body(x), 0.2, self.training))


def loss_of(outputs, targets=None):
    return outputs.square().mean() if targets is None else cross_entropy(outputs, targets)


def accuracy_of(model, held_out):
    model.eval()
    with torch.no_grad():
        right = (model(held_out[0]).argmax(1) == held_out[1]).float().mean().item()
    model.train()
    return right

"""

_OWN = """
run = elastic.init()


def wrapped(model):
    return DistributedDataParallel(model) if run.world_size > 1 and AVERAGES is False else model


def Tuned(model):
    return wrapped(torch.nn.Sequential(getattr(model, "module", model), torch.nn.Linear(4, 4)))


def train_step(model, optimizer, inputs, targets):
    loss = loss_of(model(inputs), targets)
    optimizer.zero_grad()
    (run.weight * loss).backward()
    optimizer.step()
    return loss


def tokens_of(line):
    return torch.tensor([float(word) for word in line.split()])


total_steps = 15
net = Net()
net.body.requires_grad_(THAWS is False)
model = wrapped(net)
optimizer = torch.optim.AdamW([one for one in net.parameters() if one.requires_grad], lr=1e-2)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
"""

_ACCELERATE = """
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
loader = DataLoader(data, batch_size=16)
"""

_HUGGINGFACE = """
class Told(Net):
    def forward(self, x, labels):
        logits = super().forward(x)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def rows(x, y):
    return [{"x": one, "labels": int(label)} for one, label in zip(x, y)]


model, data, held_out = Told(), rows(x[:160], y[:160]), rows(*held_out)
"""

_LIGHTNING = """
from lightning.pytorch import LightningModule


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, index):
        return cross_entropy(self.net(batch[0]), batch[1])

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch}: rate {self.trainer.optimizers[0].param_groups[0]['lr']:.6f}")

    def validation_step(self, batch, index):
        self.log("loss", cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)]


module, loader = Module(), DataLoader(data, batch_size=16)
held_out = DataLoader(TensorDataset(*held_out), batch_size=16)
"""


def shown() -> list[Block]:
    """All loops that train in the documentation, and are not whole scripts."""
    return [one for one in blocks("python") if _TRAINS.search(one.text) and not is_whole(one)]


def whole() -> list[Block]:
    """All whole scripts that train."""
    return [one for one in blocks("python") if _TRAINS.search(one.text) and is_whole(one)]


def is_whole(block: Block) -> bool:
    return "import argparse" in block.text


def framework(block: Block) -> str | None:
    """What holds the loop, or is around it."""
    return next((name for name in ("accelerate", "huggingface", "lightning") if name in block.text), None)


def is_alone(block: Block) -> bool:
    """Whether only with one rank it ends alike to the bit: others sum by time, or do not wrap their model."""
    return "dynamic=True" in block.text or "rebuild=" in block.text


def dressed(block: Block, folder: Path, *, in_process: bool = False) -> str:
    """The block as a script that runs, with data below this folder.

    Args:
        block: of the documentation.
        folder: `supply` has made it.
        in_process: the script has no processes to read ahead in.
    """
    text = block.text.replace("run = elastic.init()\n", "").replace("1000", str(STEPS + 1))
    text = re.sub(r"^\.\.\. .*\n", "", text, flags=re.MULTILINE)
    text = text.replace(
        "patience=5.0", "patience=None"
    )  # who was late, and went on alone, is a matter of luck
    text = text.replace("every=16", f"every={STEPS}")
    text = text.replace("Accelerator()", "Accelerator(cpu=True)")
    text = text.replace("max_epochs=3", "max_epochs=3, logger=False")
    text = text.replace("num_train_epochs=3", "num_train_epochs=3, use_cpu=True, report_to=[]")
    if in_process:
        text = re.sub(r"num_workers=\d", "num_workers=0", text)
    kind = framework(block)
    about = {"accelerate": _ACCELERATE, "huggingface": _HUGGINGFACE, "lightning": _LIGHTNING}
    setup = _SUPPLIES + (about[kind] if kind else _OWN)
    setup = setup.replace("AVERAGES", repr("run.average" in text)).replace("THAWS", repr("def thaw" in text))
    if "for batch in" in text:
        setup += "data = list(x[:40])\n"
    if "StatefulDataLoader" in text:
        setup += "from torchdata.stateful_dataloader import StatefulDataLoader\n"
    if "ShardedStream" in text:
        setup += f"paths = [str(path) for path in Path({str(folder)!r}).glob('*.txt')]\n"
    if kind is None and "run.restore(" not in text:
        setup += "run.restore(model, optimizer, schedule=schedule)\n"
    end = "" if "finish(" in text else "run.finish()\n"
    return f"{setup}\n{text}\n{end}"


def supply(folder: Path) -> Path:
    """Shards of 160 lines together."""
    folder.mkdir()
    for number, lines in enumerate((30, 20, 40, 10, 35, 25)):
        text = "".join(f"{number} {line} 1 0\n" for line in range(lines))
        (folder / f"{number}.txt").write_text(text)
    return folder
