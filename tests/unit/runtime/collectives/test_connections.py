"""What is left of process groups when a rank leaves them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from airflow_elastic.runtime.collectives.connections import cut, forget_groups, noted

#: One of two ranks. Rank 1 comes to the barrier only when rank 0 has left it: then it finds its connection cut, too.
RANK = """
import sys, threading
import torch.distributed as dist
from airflow_elastic.runtime.collectives.connections import cut, noted

rank, store = int(sys.argv[1]), sys.argv[2]
with noted():
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(store, 2))
dist.barrier()
print("met", flush=True)
input()
if rank == 0:
    threading.Thread(target=cut).start()
try:
    dist.barrier()
except RuntimeError as error:
    print("ended:", error, flush=True)
"""

SECONDS = 120.0


class Group:
    """Stands for a group of NCCL, which has an abort that does something."""

    def __init__(self, abort: Callable[[], None]) -> None:
        self.abort = abort


def test_torchs_hook_for_errors_goes_with_the_group() -> None:
    """Else a traceback shows the rank of each generation before each line."""
    before = sys.excepthook
    for _ in range(3):
        with noted():
            dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        assert sys.excepthook is not before
        forget_groups()
        assert sys.excepthook is before
        assert not dist.is_initialized()


def test_a_rank_that_cuts_ends_its_own_collective_and_that_of_its_peer(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), f"{tmp_path}/store"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "met\n"
        for rank in ranks:
            said, _ = rank.communicate("\n", timeout=SECONDS)
            assert said.startswith("ended: "), said
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def test_each_group_is_aborted_also_after_one_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of NCCL's does it end kernels; gloo has none."""
    aborted: list[str] = []

    def cannot() -> None:
        raise RuntimeError("this backend has no abort")

    for group in (
        Group(cannot),
        Group(lambda: aborted.append("first")),
        Group(lambda: aborted.append("second")),
    ):
        monkeypatch.setitem(dist.distributed_c10d._world.pg_map, group, ("nccl", None))  # type: ignore[call-overload]
    cut()
    assert aborted == ["first", "second"]
