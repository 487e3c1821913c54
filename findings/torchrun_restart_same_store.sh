#!/usr/bin/env bash
# torch: after a failure, torchrun's ranks meet in a store that still has the addresses of those that have ended.
#
# Versions: torch 2.15.0, Python 3.11, `torchrun --standalone`, one or two ranks on a CPU.
# Guess: a restart begins with an empty store. torch's own source says that each retry has a new one, which is why keys
#   have no prefix of the attempt any more.
# Seen: the agent serves one store as long as it lives, and what the first attempt has set is there in the second. Two
#   ranks with gloo find each other's former addresses. The restart after one rank failed ended with "Connection
#   refused" (this program shows the store alone). The variable TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 gives each
#   attempt a store of its own, and the same restart is done within a second.
# Why it matters: `--max-restarts` is torchrun's answer to failures. With gloo, which holds state of CPUs and is in
#   "cpu:gloo,cuda:nccl", a restart fails for no reason that its log names.
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

cat >"$T/rank.py" <<'END'
import os
import sys

import torch.distributed as dist

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
store, _rank, _world = next(dist.rendezvous("env://"))
print(f"attempt {attempt}: key of an attempt before: {store.check(['address'])}", flush=True)
if attempt == 0:
    store.set("address", "of a rank that ends now")
    sys.exit(1)
END

look() { # $1: value of the variable; what the second attempt finds
  TORCH_DISABLE_SHARE_RDZV_TCP_STORE=$1 "$T/venv/bin/python" -m torch.distributed.run \
    --standalone --nproc-per-node=1 --max-restarts=1 "$T/rank.py" 2>/dev/null | grep '^attempt 1'
}

shared=$(look 0)
own=$(look 1)
printf 'as it is:               %s\nwith a store of its own: %s\n' "$shared" "$own"
[ "$shared" = "attempt 1: key of an attempt before: True" ] && [ "$own" = "attempt 1: key of an attempt before: False" ]
