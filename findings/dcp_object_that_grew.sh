#!/usr/bin/env bash
# torch's DCP: an object whose state has grown comes back as new; `dcp.load` silently leaves out what it had learned.
#
# Versions: torch 2.15.0, Python 3.11, one process on a CPU, no process group.
# Guess: `dcp.save` and `dcp.load` of an object with `state_dict` and `load_state_dict` are a round trip, as pickling
#   that state is. A key of the checkpoint that has no place is an error, as a missing key is.
# Seen: `dcp.load` asks the new object for its state and fills in those keys that it has already. A table that began
#   empty is given an empty table. An Adam that has not made a step comes back without any state. Keys that the
#   checkpoint lacks are refused; keys that the object lacks are left out, and nothing warns.
# Why it matters: objects that learn as they go (vocabularies, normalisers, early stopping, data that was seen) are new
#   after each restart. They begin anew while the model does not.
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

import torch
import torch.distributed.checkpoint as dcp


class Seen:
    """How often each label was seen."""

    def __init__(self):
        self.counts = {}

    def state_dict(self):
        return {"counts": dict(self.counts)}

    def load_state_dict(self, state):
        self.counts = dict(state["counts"])


folder = tempfile.mkdtemp()
net, seen = torch.nn.Linear(2, 1), Seen()
optimizer = torch.optim.Adam(net.parameters())
net(torch.ones(1, 2)).sum().backward()
optimizer.step()
seen.counts = {"cat": 3, "dog": torch.tensor(5)}
dcp.save({"seen": seen, "optimizer": optimizer}, checkpoint_id=folder)

fresh, fresh_optimizer = Seen(), torch.optim.Adam(net.parameters())
dcp.load({"seen": fresh, "optimizer": fresh_optimizer}, checkpoint_id=folder)
known = Seen()
known.counts = {"cat": 0, "dog": torch.tensor(0)}
dcp.load({"seen": known}, checkpoint_id=folder)
try:
    known.counts["bird"] = 0
    dcp.load({"seen": known}, checkpoint_id=folder)
    missing = "nothing"
except dcp.api.CheckpointException as exc:
    missing = "an error" if "bird" in str(exc) else str(exc)
print(f"saved: {seen.counts}, and Adam's state of {len(optimizer.state)} parameters")
print(f"loaded into new objects: {fresh.counts}, and Adam's state of {len(fresh_optimizer.state)} parameters")
print(f"loaded into an object that has these keys: {known.counts}")
print(f"a key that the checkpoint does not have is {missing}")
kept = known.counts["cat"] == 3 and int(known.counts["dog"]) == 5
sys.exit(not (fresh.counts == {} and len(fresh_optimizer.state) == 0 and kept and missing == "an error"))
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
