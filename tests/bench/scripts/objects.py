"""What the training script and the floor both import and restore: a model of 8 MB, with momentum 16."""

import torch
from torch.nn.parallel import DistributedDataParallel

from airflow_elastic.runtime import Session
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.collectives.process_group import Collectives

__all__ = [
    "Collectives",
    "DistributedDataParallel",
    "Restorer",
    "Session",
    "Stateful",
    "WorkerCache",
    "build",
    "torch",
]


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
