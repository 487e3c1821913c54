#!/usr/bin/env bash
# torch's DCP: with one stager for several saves, a checkpoint that is still being written gets the next one's values.
#
# Versions: torch 2.15.0, Python 3.11, one process on a CPU, no process group.
# Guess: `async_save` has copied the state once it returns, or once `staging_completion` is there. A second save waits
#   for the upload of the first, or has memory of its own.
# Seen: a `DefaultStager` that is given to both saves has one set of buffers. The second save copies into the memory
#   that the first upload has still to read, so both checkpoints hold the second state. Both futures succeed, and
#   nothing warns. Where no stager is given, each save makes its own, and both checkpoints are right.
# Why it matters: a stager is kept to stop training for less time, and slow storage makes two saves overlap. The
#   checkpoint of step 1 then holds step 2, or parts of both, and the next restart silently goes on from it.
#
# Exits 0 while that is so, 1 when it is not, 2 where it could not be tried.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
{
  python3 -m venv "$T/venv"
  "$T/venv/bin/pip" install -q uv
  "$T/venv/bin/uv" pip install -q --python "$T/venv/bin/python" torch==2.15.0
} || exit 2

cat >"$T/train.py" <<'END'
import sys
import tempfile
import threading
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

warnings.simplefilter("ignore")
storage_answers = threading.Event()


class SlowStorage(dcp.FileSystemWriter):
    def write_data(self, *args, **kwargs):
        storage_answers.wait()
        return super().write_data(*args, **kwargs)


def save_twice(**options):
    """What the checkpoints of steps 1 and 2 hold, where both were staged before storage took the first."""
    storage_answers.clear()
    folder, weight, saves = tempfile.mkdtemp(), torch.zeros(4), []
    for step in (1, 2):
        weight.fill_(step)
        save = dcp.async_save({"weight": weight}, storage_writer=SlowStorage(f"{folder}/{step}"), **options)
        if hasattr(save, "staging_completion"):
            save.staging_completion.result(timeout=60)
        saves.append(getattr(save, "upload_completion", save))
    storage_answers.set()
    for save in saves:
        save.result(timeout=60)
    held = []
    for step in (1, 2):
        loaded = {"weight": torch.zeros(4)}
        dcp.load(loaded, checkpoint_id=f"{folder}/{step}")
        held.append(loaded["weight"].tolist())
    return held


def stager(in_background):
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=False,
            use_async_staging=in_background,
            use_non_blocking_copy=False,
        )
    )


own = save_twice()
shared = [save_twice(async_stager=stager(in_background)) for in_background in (False, True)]
print(f"a stager for each save: the checkpoints of steps 1 and 2 hold {own}")
print(f"one stager for both: {shared[0]}; one that stages in the background: {shared[1]}")
ones, twos = [1.0] * 4, [2.0] * 4
sys.exit(not (own == [ones, twos] and all(held == [twos, twos] for held in shared)))
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
