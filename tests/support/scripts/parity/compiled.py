"""Compiles a function and its gradient with torch's default compiler. Argument: a folder.

It notes the values, and the processes of its compile workers, in N.json. N is the number of restarts before. With
`--die-first` the first attempt kills itself, while its compile workers live.
"""

import json
import os
import signal
import sys
from pathlib import Path

FORKED = "torch" in sys.modules

import torch  # noqa: E402
from torch._inductor import metrics  # noqa: E402
from torch._inductor.async_compile import AsyncCompile  # noqa: E402

from airflow_elastic.adapters.host.processes import Process  # noqa: E402


@torch.compile
def loss(x, weight):
    return torch.nn.functional.gelu(x @ weight).softmax(1).var()


def compile_workers():
    """The process that torch has started, and the workers that are forks of it: all have the same command line."""
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_text().split("\0")
        except OSError:  # no process, or one that has ended
            continue
        if f"--parent={os.getpid()}" in words:
            process = Process.of(int(entry.name))
            yield process.pid, process.started


torch.manual_seed(7)
x, weight = torch.rand(64, 32), torch.rand(32, 16, requires_grad=True)
value = loss(x, weight)
value.backward()
# A kernel for processors is compiled by a thread, and one for GPUs by a worker. A job that does nothing shows that the
# workers answer.
AsyncCompile.wait_pool_ready()
told = {
    "forked": FORKED,
    "kernels": metrics.generated_kernel_count,
    "values": [value.item(), *weight.grad.flatten().tolist()],
    "workers": sorted(compile_workers()),
}
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
Path(sys.argv[1], f"{attempt}.json").write_text(json.dumps(told))
if "--die-first" in sys.argv and attempt == "0":
    os.kill(os.getpid(), signal.SIGKILL)
