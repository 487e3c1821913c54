"""What the training script and the floor both import and restore: a model of 8 MB, with momentum 16.

Or a GPT: `sizes.py`.
"""

import sys
from pathlib import Path

import torch
from sizes import BATCH, DEVICE, ON_GPU, PARAMETERS, TOKENS
from torch.nn.parallel import DistributedDataParallel

from airflow_elastic.runtime import Session
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.collectives.process_group import Collectives

if PARAMETERS:
    sys.path.append(str(Path(__file__).parents[3]))
    from tests.bench.support.models import GPT_WORDS, gpt

__all__ = [
    "Collectives",
    "DistributedDataParallel",
    "Restorer",
    "Session",
    "Stateful",
    "WorkerCache",
    "batch",
    "build",
    "loss_of",
    "torch",
]


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    if PARAMETERS:
        with torch.device(DEVICE):
            model = gpt(PARAMETERS, TOKENS)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def batch() -> torch.Tensor:
    if PARAMETERS:
        return torch.randint(0, GPT_WORDS, (BATCH, TOKENS + 1), device=DEVICE)
    return torch.randn(8, 1024)


def loss_of(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    if PARAMETERS:
        with torch.autocast("cuda", torch.bfloat16, enabled=ON_GPU):
            return model(x)
    return model(x).square().mean()
