"""Trains without end, and writes down when it came how far: BENCH_MARKS/<attempt>-<pid>-<rank>.json.

With BENCH_STAY its process stays when another one is killed. What it trains: `sizes.py`.
"""

from marks import mark, process_started, write

mark("rank started", process_started())
mark("script reached")

import os  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402

mark("torch imported")

from objects import DistributedDataParallel, batch, build, loss_of  # noqa: E402
from sizes import ON_GPU  # noqa: E402

import airflow_elastic.runtime as elastic  # noqa: E402

mark("all imported")
# All ranks share one GPU, which NCCL does not take.
run = elastic.init(total_steps=10**9, backend="gloo" if ON_GPU else None)
mark("ranks joined")


def training():
    model, optimizer = build()
    if run.world_size > 1:
        model = DistributedDataParallel(model)
    mark("model built")
    run.restore(model, optimizer)
    mark("restored")
    x = batch()
    first = True
    while True:
        loss = loss_of(model, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if first and ON_GPU:
            torch.cuda.synchronize()
        run.step(loss)
        if first:
            mark("first step")
            write(Path(os.environ["BENCH_MARKS"], f"{run.attempt}-{os.getpid()}-{run.rank}.json"))
            first = False


if os.environ.get("BENCH_STAY"):
    run.train(training)
else:
    training()
