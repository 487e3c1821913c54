#!/usr/bin/env bash
# torchdata: two ranks take the loader states of three ranks without an error, and samples come twice.
#
# Versions: torchdata 0.11.0, torch 2.15.0, Python 3.11, one process on a CPU that plays all ranks.
# Guess: the state of a `StatefulDataLoader` over a `StatefulDistributedSampler` has the world size, so that another
#   one is refused. Another number of the loader's own workers is refused, after all.
# Seen: the state says how many samples this rank has been given, and nothing of the world size. On two ranks each
#   sampler skips as many of its samples as each of three ranks had: 8 samples are skipped where 12 were trained on.
#   Four come twice in the epoch. From two ranks to three, four never come. Nothing warns.
# Why it matters: a rank more or less is what elastic training is about. The data of the rest of the epoch is wrong
#   from then on, and the loss does not show it.
#
# Exits 0 while that is so, 1 when it is not, 2 where it could not be tried.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
{
  python3 -m venv "$T/venv"
  "$T/venv/bin/pip" install -q uv
  "$T/venv/bin/uv" pip install -q --python "$T/venv/bin/python" torchdata==0.11.0 torch==2.15.0
} || exit 2

cat >"$T/train.py" <<'END'
import sys
import warnings

import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

warnings.simplefilter("ignore")


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index


def loader(rank, world_size):
    sampler = StatefulDistributedSampler(Data(), num_replicas=world_size, rank=rank, shuffle=False)
    return StatefulDataLoader(Data(), batch_size=2, sampler=sampler)


def restart(before, after):
    """Samples that come twice in an epoch that some ranks begin and others end, and those that never come."""
    trained, states = [], []
    for rank in range(before):
        one = loader(rank, before)
        batches = iter(one)
        trained += [*next(batches).tolist(), *next(batches).tolist()]
        states.append(one.state_dict())
    for rank in range(after):
        one = loader(rank, after)
        one.load_state_dict(states[rank % before])
        trained += [sample for batch in one for sample in batch.tolist()]
    return sorted({one for one in trained if trained.count(one) > 1}), sorted({*range(24)} - {*trained})


found = {}
for before, after in ((3, 3), (3, 2), (2, 3)):
    found[before, after] = twice, never = restart(before, after)
    print(f"{before} ranks, then {after}: twice {twice}, never {never}")
wanted = {(3, 3): ([], []), (3, 2): ([8, 9, 10, 11], []), (2, 3): ([], [8, 9, 10, 11])}
sys.exit(found != wanted)
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
