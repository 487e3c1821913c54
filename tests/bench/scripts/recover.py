"""Trains without end, and writes down when it came how far: BENCH_MARKS/<attempt>-<pid>-<rank>.json.

With BENCH_STAY its process stays when another one is killed.
"""

from marks import mark, process_started, write

mark("rank started", process_started())
mark("script reached")

import os  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402

mark("torch imported")

from objects import DistributedDataParallel, build  # noqa: E402

import airflow_elastic.runtime as elastic  # noqa: E402

mark("all imported")
run = elastic.init(total_steps=10**9)
mark("ranks joined")


def training():
    model, optimizer = build()
    if run.world_size > 1:
        model = DistributedDataParallel(model)
    mark("model built")
    run.restore(model, optimizer)
    mark("restored")
    x = torch.randn(8, 1024)
    first = True
    while True:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.step(loss)
        if first:
            mark("first step")
            write(Path(os.environ["BENCH_MARKS"], f"{run.attempt}-{os.getpid()}-{run.rank}.json"))
            first = False


if os.environ.get("BENCH_STAY"):
    run.train(training)
else:
    training()
