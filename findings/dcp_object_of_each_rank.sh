#!/usr/bin/env bash
# torch's DCP: where each rank saves an object of its own under the same key, all ranks get back one rank's state.
#
# Versions: torch 2.15.0, Python 3.11, numpy 2.4.6, two processes with gloo on CPUs.
# Guess: each rank hands its own object to `dcp.save`, a generator of random numbers for example, and gets its own back
#   from `dcp.load`. Or it is refused, as ranks have different values under one name.
# Seen: DCP takes everything but sharded tensors to be equal on all ranks. It drops duplicates by their names and does
#   not compare them. Both ranks come back with rank 0's generator, and draw the same numbers from then on.
# Why it matters: dropout and augmentation were independent on each rank, and are the same on all of them after the
#   first restart. Loss curves hardly show it.
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

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing


class Generator:
    """This rank's own random numbers."""

    def __init__(self):
        self.own = torch.Generator().manual_seed(100 + dist.get_rank())

    def state_dict(self):
        return {"state": self.own.get_state()}

    def load_state_dict(self, state):
        self.own.set_state(state["state"])

    def draw(self):
        return round(float(torch.rand(1, generator=self.own)), 6)


def of_both(value):
    every = [None, None]
    dist.all_gather_object(every, value)
    return every


def train(rank, folder):
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    undisturbed, restarted = Generator(), Generator()
    dcp.save({"generator": undisturbed}, checkpoint_id=f"{folder}/checkpoint")
    drawn = of_both(undisturbed.draw())
    dcp.load({"generator": restarted}, checkpoint_id=f"{folder}/checkpoint")
    resumed = of_both(restarted.draw())
    dist.destroy_process_group()
    if rank == 0:
        print(f"ranks 0 and 1 draw {drawn}; after a restart {resumed}", flush=True)
    sys.exit(not (drawn[0] != drawn[1] and resumed == [drawn[0], drawn[0]]))


if __name__ == "__main__":
    torch.multiprocessing.start_processes(train, (tempfile.mkdtemp(),), nprocs=2, start_method="fork")
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
