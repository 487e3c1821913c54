"""A training in a function, as for `@task.elastic_train`; run as a file, it does the same.

`train(steps, out)`: small steps, in which Python takes most of the time. Writes as JSON when the first step ended
(seconds of the wall clock), and the seconds of a later one.
"""

import json
import sys
import time

import torch

import airflow_elastic.runtime as elastic

WARM_STEPS = 50


def loss_of(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for row in x:
        total = total + model(row).square().mean()
    return total


def train(steps: int, out: str) -> None:
    run = elastic.init()
    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    run.restore(model, optimizer)
    data = torch.utils.data.TensorDataset(torch.randn(8 * steps, 16))
    ends = []
    for (x,) in run.loader(data, global_batch=8, epochs=1):
        loss = loss_of(model, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.step(loss)
        ends.append(time.time())
    with open(out, "w") as file:
        json.dump({"first": ends[0], "step": (ends[-1] - ends[WARM_STEPS]) / (steps - WARM_STEPS - 1)}, file)
    run.finish()


if __name__ == "__main__":
    train(**json.loads(sys.argv[1]))
