"""A small DDP training with all that a resumed run has to put back: weights, two optimizers, of which one has two
groups of parameters, a schedule, dropout's luck, and a gradient scaler that leaves the first step out.

Options: --epochs N; --step-seconds S; --sample-seconds S, for each sample of a rank; --fail-at STEP raises there,
each time it comes by; --hang-at STEP stands still there in the first attempt, --hang-rank RANK alone, if that is
said; --hang-again: all stand still before the first step of the second attempt; --die-at STEP: there the last rank
kills itself, in the first attempt; --die-late: all fail once they have finished; --out FILE: rank 0 writes a digest
of the whole state at the end, its luck included; --samples FOLDER: every rank writes which samples each of its steps
consumed; --lag RANK: the forward pass of this rank takes 20 ms more; --width N of the hidden layer; --lr RATE;
--sharded: by FSDP2, and not DDP; --gpu: on the rank's GPU; --backend NAME: torch's (two ranks on one GPU need gloo);
--verbose: logs what is only of interest; --stay: calls the training by `run.train`; --same-order: DDP adds gradients in
one order at all steps, also the first after a restart, which counts with three ranks or more.
"""

import argparse
import hashlib
import logging
import os
import signal
import time

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import airflow_elastic.runtime as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--step-seconds", type=float, default=0.0)
parser.add_argument("--fail-at", type=int, default=-1)
parser.add_argument("--hang-at", type=int, default=-1)
parser.add_argument("--hang-rank", type=int)
parser.add_argument("--hang-again", action="store_true")
parser.add_argument("--die-at", type=int, default=-1)
parser.add_argument("--die-late", action="store_true")
parser.add_argument("--lag", type=int, default=-1)
parser.add_argument("--width", type=int, default=16)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--sharded", action="store_true")
parser.add_argument("--gpu", action="store_true")
parser.add_argument("--backend")
parser.add_argument("--verbose", action="store_true")
parser.add_argument("--out")
parser.add_argument("--sample-seconds", type=float, default=0.0)
parser.add_argument("--samples")
parser.add_argument("--stay", action="store_true")
parser.add_argument("--same-order", action="store_true")
options = parser.parse_args()
if options.verbose:
    logging.basicConfig(level=logging.INFO)


class Lag(torch.nn.Module):
    """Takes its time on one rank."""

    def forward(self, x):
        time.sleep(0.02 * (run.rank == options.lag))
        return x


torch.set_num_threads(1)
run = elastic.init(backend=options.backend)
device = run.device if options.gpu else torch.device("cpu")


def training():
    torch.manual_seed(100 + run.rank)
    data = torch.utils.data.TensorDataset(torch.arange(640).float().reshape(-1, 1).repeat(1, 8) / 640)
    torch.manual_seed(7)
    width = options.width
    first, last = torch.nn.Linear(8, width), torch.nn.Linear(width, 1)
    model = torch.nn.Sequential(first, torch.nn.Dropout(0.1), Lag(), last).to(device)
    torch.manual_seed(100 + run.rank)
    if options.sharded:
        fully_shard(first)
        fully_shard(model)
    elif run.world_size > 1:
        # DDP does not divide gradients into other buckets after its first step then.
        model = DistributedDataParallel(model, find_unused_parameters=options.same_order)
    decaying = {"params": [first.weight], "weight_decay": 0.01}
    adam = torch.optim.AdamW([decaying, {"params": [first.bias], "weight_decay": 0.0}], lr=options.lr / 5)
    sgd = torch.optim.SGD(last.parameters(), lr=options.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(sgd, step_size=10, gamma=0.9)
    # So large that the first step overflows; a power of two, so that it changes no bit of any other.
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**127, backoff_factor=2.0**-100)
    from_step = run.restore(model, adam, sgd, schedule=schedule, scaler=scaler)
    loss = torch.zeros(())  # an attempt may begin at the very end
    print("from step", from_step, "of", run.world_size, "ranks", flush=True)
    for (x,) in run.loader(data, global_batch=64, epochs=options.epochs, seed=3):
        x = x.to(device)
        loss = run.weight * ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        scaler.scale(loss).backward()
        for optimizer in (adam, sgd):
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        schedule.step()
        time.sleep(options.step_seconds + options.sample_seconds * len(x))
        if run.steps + 1 == options.fail_at:
            raise ValueError(f"a bad batch before step {options.fail_at}")
        if run.steps + 1 == options.die_at and run.attempt == 1 and run.rank == run.world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        hang = run.steps + 1 == options.hang_at and run.attempt == 1 and options.hang_rank in (None, run.rank)
        if hang or (options.hang_again and run.attempt == 2):
            while True:
                signal.pause()
        if options.samples and run.weight > 0:
            name = f"{options.samples}/a{run.attempt}-g{os.environ.get('AIRFLOW_ELASTIC_GENERATION')}-r{run.rank}"
            with open(name, "a") as file:
                file.write(f"{run.steps + 1} {' '.join(str(round(float(v) * 640)) for v in x[:, 0])}\n")
        run.step(loss)
    if options.out:
        kept = [kept for one in (adam, sgd) for state in one.state.values() for kept in state.values()]
        whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in [*model.parameters(), *kept]]
        found = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in whole))
        if options.gpu:
            found.update(torch.cuda.get_rng_state().numpy().tobytes())
        found.update(
            torch.get_rng_state().numpy().tobytes()
            + repr([schedule.state_dict(), scaler.state_dict()]).encode()
        )
        if run.rank == 0:
            with open(options.out, "w") as file:
                file.write(found.hexdigest())
    run.finish(loss=float(loss.detach()))


(run.train if options.stay else lambda function: function())(training)
if options.die_late:
    raise SystemExit(3)
