"""A real process in `run.train` between two generations: what it takes over, and when it ends instead.

This test is its agent. The process is the only rank, so there is no process group.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_elastic.runtime.staying.agent_link import NextGeneration
from airflow_elastic.runtime.staying.rank_links import RankLinks

RANK = """
import sys, time
import torch
import airflow_elastic.runtime as elastic

run, calls = elastic.init(), 0

def training():
    global calls
    calls += 1
    print(f"call {calls} with {torch.get_num_threads()} threads", flush=True)
    while calls == 1:
        if "--lost" in sys.argv:
            raise RuntimeError("Connection closed by peer [10.0.0.1]:1")
        time.sleep(0.01)
        run.step()

if "--own-threads" in sys.argv:
    torch.set_num_threads(2)
if "--cuda" in sys.argv:  # an illegal access, say: from then on each call of CUDA fails
    def fail():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    torch.cuda.is_initialized, torch.cuda.synchronize = lambda: True, fail
run.train(training)
"""

SECONDS = 120.0

#: Variables of a rank: this one has no run, and no peers.
_OF_RANKS = (
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "AIRFLOW_ELASTIC_RANK_FILES",
    "AIRFLOW_ELASTIC_RUN_URI",
)

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the rank of an agent, and wait until it is in `run.train`."""
    started: list[subprocess.Popen[str]] = []

    def begin(links: RankLinks, *words: str) -> subprocess.Popen[str]:
        plain = {name: value for name, value in os.environ.items() if name not in _OF_RANKS}
        process = subprocess.Popen(
            [sys.executable, "-c", RANK, *words],
            env={**plain, **links.environment(), "RANK": "0", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        while not links.can_stay(process.pid) and process.poll() is None:
            links.look(0.1)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def left(start: Start) -> subprocess.Popen[str]:
    """A rank that has left its generation. Its agent is gone when this returns, as its socket closes then."""
    links = RankLinks()
    rank = start(links)
    links.tell_to_leave(rank.pid)
    assert links.await_leaving(rank.pid, SECONDS)
    return rank


def test_without_its_agent_it_ends(start: Start) -> None:
    rank = left(start)
    said, _ = rank.communicate(timeout=SECONDS)
    assert "call 1 with" in said
    assert "call 2" not in said
    assert said.splitlines()[-1] == "the agent of this worker is gone"
    assert rank.returncode == 1


@pytest.mark.parametrize(("words", "before", "after"), [((), 1, 3), (("--own-threads",), 2, 2)])
def test_after_a_scale_step_it_has_the_threads_of_its_new_generation_or_the_scripts_own(
    words: tuple[str, ...], before: int, after: int, start: Start, tmp_path: Path
) -> None:
    links = RankLinks()
    rank = start(links, *words)
    links.tell_to_leave(rank.pid)
    assert links.await_leaving(rank.pid, SECONDS)
    following = NextGeneration({"OMP_NUM_THREADS": "3"}, f"{tmp_path}/log")
    assert links.join(rank.pid, following, SECONDS)
    said, _ = rank.communicate(timeout=SECONDS)
    assert (rank.returncode, said) == (0, f"call 1 with {before} threads\n")
    assert f"call 2 with {after} threads" in (tmp_path / "log").read_text().splitlines()


def test_if_cuda_has_failed_it_ends_once_it_has_lost_its_peers(start: Start) -> None:
    links = RankLinks()
    rank = start(links, "--cuda", "--lost")
    said, _ = rank.communicate(timeout=SECONDS)
    assert "goes on in a new process: CUDA has failed: CUDA error: an illegal memory access" in said
    assert (rank.returncode, "call 2" in said) == (1, False)
    assert not links.await_leaving(rank.pid, SECONDS)  # so its agent starts another process in its place


def test_if_cuda_has_failed_it_waits_for_its_end_where_it_must_leave(start: Start) -> None:
    """What its agent has ended is no failure of the rank."""
    links = RankLinks()
    rank = start(links, "--cuda")
    links.tell_to_leave(rank.pid)
    assert not links.await_leaving(rank.pid, SECONDS)
    assert not links.can_stay(rank.pid)
    assert rank.poll() is None
    rank.terminate()
    said, _ = rank.communicate(timeout=SECONDS)
    assert "goes on in a new process: CUDA has failed" in said
    assert (rank.returncode, "call 2" in said) == (-15, False)
