#!/usr/bin/env bash
# torch's DCP: where tensor parallelism and FSDP2 both cut a weight unevenly, the checkpoint lacks a row, and no error
# tells so.
#
# Versions: torch 2.15.0, Python 3.11, numpy 2.4.6, six processes with gloo on CPUs: three shards of data by two of
#   tensors.
# Guess: a weight that `parallelize_module` and `fully_shard` have cut can be saved and loaded with any number of rows,
#   as `full_tensor()` is right with any.
# Seen: seven rows are cut into four and three by tensor parallelism, and each of these into three by FSDP2. DTensor
#   computes wrong places for the last two ranks: it gives row 6 to the rank that has none, and no row to the rank that
#   has row 6. `dcp.save` succeeds without that row. `dcp.load` on the same six ranks succeeds, too, and leaves the row
#   as it is in memory. Loading on one rank is refused. With eight rows all is right.
# Why it matters: a vocabulary is seldom divisible by all world sizes that an elastic run may have (50257 is not), and
#   a row that is not in the checkpoint is random after each restart.
#
# Exits 0 while that is so, 1 when it is not, 2 where it could not be tried.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
{
  python3 -m venv "$T/venv"
  "$T/venv/bin/pip" install -q uv
  "$T/venv/bin/uv" pip install -q --python "$T/venv/bin/python" torch==2.15.0 numpy==2.4.6
} || exit 2

cat >"$T/train.py" <<'END'
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

warnings.simplefilter("ignore")
DATA, TENSORS = 3, 2


def train(rank, rows, folder):
    """Save a weight of which each row has its own number, overwrite it with -1, and load it."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", DATA * TENSORS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=DATA * TENSORS)
    mesh = init_device_mesh("cpu", (DATA, TENSORS), mesh_dim_names=("data", "tensors"))
    net = torch.nn.Sequential(torch.nn.Linear(1, rows, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.arange(float(rows)).view(rows, 1))
    parallelize_module(net, mesh["tensors"], {"0": ColwiseParallel()})
    fully_shard(net, mesh=mesh["data"])
    whole = net[0].weight.full_tensor().flatten().tolist()
    dcp.save(net.state_dict(), checkpoint_id=f"{folder}/checkpoint")
    with torch.no_grad():
        net[0].weight.to_local().fill_(-1)
    dcp.load(net.state_dict(), checkpoint_id=f"{folder}/checkpoint")
    loaded = net[0].weight.full_tensor().flatten().tolist()
    if rank == 0:
        torch.save((whole, loaded), f"{folder}/seen")
    dist.destroy_process_group()


def restart(rows):
    """The weight before saving, after loading on the same ranks, and on one rank."""
    folder = tempfile.mkdtemp()
    torch.multiprocessing.start_processes(train, (rows, folder), nprocs=DATA * TENSORS, start_method="fork")
    alone = {"0.weight": torch.full((rows, 1), -1.0)}
    try:
        dcp.load(alone, checkpoint_id=f"{folder}/checkpoint")
        on_one = alone["0.weight"].flatten().tolist()
    except dcp.api.CheckpointException as exc:
        on_one = "refused" if "mismatch sizes" in str(exc) else str(exc)
    return *torch.load(f"{folder}/seen"), on_one


if __name__ == "__main__":
    seen = {rows: restart(rows) for rows in (8, 7)}
    for rows, (whole, loaded, on_one) in seen.items():
        print(f"{rows} rows {whole}, saved and loaded: {loaded}, on one rank: {on_one}")
    eight, seven = ([float(row) for row in range(rows)] for rows in (8, 7))
    sys.exit(seen != {8: (eight, eight, eight), 7: (seven, [*seven[:6], -1.0], "refused")})
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
