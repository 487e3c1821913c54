#!/usr/bin/env bash
# torchdata: a StatefulDataLoader that resumes within an epoch gives the same samples with other random numbers.
#
# Versions: torchdata 0.11.0, torch 2.15.0, Python 3.11, one process and two workers on CPUs.
# Guess: with the loader's state, the global generator's and that of the loader's own generator all restored, the rest
#   of the epoch is what it would have been: the same samples, and the same random numbers drawn for them.
# Seen: samples are the same. With `num_workers=2` the random numbers that the data set draws are not: the resumed
#   loader draws a new seed for its workers, and their generators are not in its state. Without workers both are the
#   same.
# Why it matters: random augmentation after a restart is another one, so a run that was restarted within an epoch
#   cannot end with the bits of an undisturbed one.
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

warnings.simplefilter("ignore")


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index, torch.rand(1).item()


def rest_of_epoch(workers):
    """Twice: undisturbed, and with a new loader that goes on from the second batch."""

    def loader():
        own = torch.Generator().manual_seed(5)
        return own, StatefulDataLoader(Data(), batch_size=4, num_workers=workers, shuffle=True, generator=own)

    torch.manual_seed(1)
    own, undisturbed = loader()
    batches = iter(undisturbed)
    next(batches), next(batches)
    saved, states = undisturbed.state_dict(), (torch.get_rng_state(), own.get_state())
    expected = [(samples.tolist(), drawn.tolist()) for samples, drawn in batches]
    own, resumed = loader()
    resumed.load_state_dict(saved)
    torch.set_rng_state(states[0])
    own.set_state(states[1])
    return expected, [(samples.tolist(), drawn.tolist()) for samples, drawn in resumed]


same = {}
for workers in (0, 2):
    expected, got = rest_of_epoch(workers)
    same[workers] = [[one[part] for one in expected] == [one[part] for one in got] for part in (0, 1)]
    print(f"{workers} workers: the same samples {same[workers][0]}, the same random numbers {same[workers][1]}")
sys.exit(same != {0: [True, True], 2: [True, False]})
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
