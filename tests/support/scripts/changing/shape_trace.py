"""What a training whose shape changes had in each step, for a test that gives it other ranks: `--trace FILE`.

Rank 0 appends `did STEP WORLD_SIZE DIGEST` with each step, and `restored STEP WORLD_SIZE DIGEST` where it goes on: of
parameters, buffers and what optimizers keep. FILE.restored has what it goes on from, and FILE.end what it ends with.
"""

import hashlib
import time

import torch
import torch.distributed as dist


class Trace:
    """Of one model and its optimizers; nothing where no file is named."""

    def __init__(self, path):
        self._path = path

    def did(self, step, net, *optimizers):
        """Call before the step is told. The two ranks that begin are slow after step 10, until there are others."""
        self._write("did", step, net, optimizers)
        if self._path and dist.get_world_size() == 2 and step > 10:
            time.sleep(0.5)

    def restored(self, step, net, *optimizers):
        self._write("restored", step, net, optimizers)
        self._keep("restored", net)

    def end(self, net):
        """All ranks call this together: they have the same parameters."""
        mine = {name: one.detach().clone() for name, one in net.named_parameters()}
        each = [None] * dist.get_world_size()
        dist.all_gather_object(each, mine)
        if not all(torch.equal(one[name], mine[name]) for one in each for name in mine):
            raise SystemExit("ranks have trained by themselves")
        self._keep("end", net)

    def _write(self, word, step, net, optimizers):
        if self._path and dist.get_rank() == 0:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(f"{word} {step} {dist.get_world_size()} {_digest(net, optimizers)}\n")

    def _keep(self, word, net):
        if self._path and dist.get_rank() == 0:
            trained = {name: one.requires_grad for name, one in net.named_parameters()}
            torch.save({"state": net.state_dict(), "trained": trained}, f"{self._path}.{word}")


def _digest(net, optimizers):
    found = hashlib.sha256()
    for name, value in sorted(net.state_dict().items()):
        found.update(f"{name} {tuple(value.shape)}".encode() + value.contiguous().numpy().tobytes())
    for name, parameter in sorted(net.named_parameters()):
        for one in optimizers:
            for key, value in sorted(one.state.get(parameter, {}).items()):
                found.update(f"{name} {key}".encode() + value.contiguous().numpy().tobytes())
    return found.hexdigest()
