"""Which rank stands elsewhere than the others, by the stacks that ranks print."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.adapters.host.processes import Process
from airflow_elastic.core.health.stack_comparison import grouped, rendered, told
from airflow_elastic.runtime.agent.reporting.stacks import ask_ranks, main_thread
from airflow_elastic.spec import layout
from airflow_elastic.spec.stacks import RankStack

if TYPE_CHECKING:
    from airflow_elastic.runtime.agent.worker import Worker

LIB = "/venv/lib/python3.11/site-packages/torch"
BACKWARD = (f"{LIB}/autograd/graph.py:1113 in _engine_run_backward", "/home/ada/train.py:60 in <module>")
REDUCE = (f"{LIB}/distributed/distributed_c10d.py:3 in all_reduce", "/home/ada/train.py:61 in <module>")
LOADING = (
    "/venv/lib/python3.11/socket.py:1 in recv",
    "/home/ada/data.py:52 in load",
    "/home/ada/train.py:5 in main",
)
AT = ("train.py:60 in <module>", "train.py:61 in <module>")
SYNC = ("/home/ada/train.py:70 in log",)


def stand(*places: tuple[str, ...]) -> str:
    return told(grouped(RankStack(n, f"node-{n}", place) for n, place in enumerate(places)))


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ((BACKWARD, LOADING), "rank 1 stands at data.py:52 in load, rank 0 at train.py:60 in <module>"),
        ((LOADING, REDUCE), "rank 0 stands at data.py:52 in load, rank 1 at train.py:61 in <module>"),
        (
            (BACKWARD, BACKWARD, LOADING),
            "rank 2 stands at data.py:52 in load, ranks 0, 1 at train.py:60 in <module>",
        ),
        # In another collective than the others, or none that can be known: the fewer.
        (
            (BACKWARD, REDUCE, BACKWARD),
            f"rank 1 stands at {AT[1]}, ranks 0, 2 at {AT[0]}",
        ),
        ((SYNC, SYNC, LOADING), "rank 2 stands at data.py:52 in load, ranks 0, 1 at train.py:70 in log"),
        # All at one place, or of two none that could be told to be right.
        ((SYNC, SYNC), "ranks 0, 1 at train.py:70 in log"),
        ((SYNC, LOADING), "rank 0 at train.py:70 in log, rank 1 at data.py:52 in load"),
        ((BACKWARD, REDUCE), "rank 0 at train.py:60 in <module>, rank 1 at train.py:61 in <module>"),
        # Whose program prints none is not taken to stand elsewhere.
        ((BACKWARD, ()), "rank 0 at train.py:60 in <module>"),
        (((), ()), ""),
        ((), ""),
    ],
)
def test_the_rank_that_stands_elsewhere_is_named(places: tuple[tuple[str, ...], ...], text: str) -> None:
    assert stand(*places) == text


@given(st.integers(3, 40), st.randoms(use_true_random=False))
def test_one_of_many_is_found_wherever_it_is(count: int, luck: random.Random) -> None:
    lost, place = luck.randrange(count), luck.choice([BACKWARD, REDUCE, SYNC])
    stacks = grouped(RankStack(n, "node-0", LOADING if n == lost else place) for n in range(count))
    assert [stack.ranks for stack in stacks if stack.elsewhere] == [(lost,)]
    assert rendered(stacks).startswith(f"rank {lost}, elsewhere than the others")


def test_much_is_told_in_little() -> None:
    deep = tuple(f"/home/ada/train.py:{n} in f" for n in range(1000))
    stacks = grouped(RankStack(n, "node-0", (f"/a.py:{n} in g", *deep)) for n in range(500))
    assert len(rendered(stacks)) < 20_000
    assert len(told(stacks)) < 300


HANGING = """
import faulthandler, signal, sys, threading, time
if sys.argv[1] == "tells":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
def deep():
    print("ready", flush=True)
    time.sleep(600)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
deep()
"""


def test_ranks_print_their_stacks_and_one_that_would_end_by_the_signal_is_not_sent_it(tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text(HANGING)
    logs = [tmp_path / layout.rank_log(1, rank) for rank in range(2)]
    ranks = []
    try:
        for log, how in zip(logs, ("tells", "does not"), strict=True):
            with log.open("wb") as output:
                command = [sys.executable, str(tmp_path / "hang.py"), how]
                ranks.append(subprocess.Popen(command, stdout=output, stderr=output))
        for log, process in zip(logs, ranks, strict=True):
            while b"ready" not in log.read_bytes():
                assert process.poll() is None
        processes = {number: Process.of(process.pid) for number, process in enumerate(ranks)}
        node = SimpleNamespace(index=3, generation=1, logs=tmp_path, processes=processes)
        first, second = ask_ranks(cast("Worker", node))
        assert first.frames[0] == f"{tmp_path}/hang.py:7 in deep"
        assert (first.worker, second) == ("node-3", RankStack(1, "node-3", ()))
        assert "Thread 0x" in logs[0].read_text()
        assert ranks[1].poll() is None, "it has no handler: the signal would have ended it"
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_of_what_is_printed_the_main_thread_counts() -> None:
    printed = (
        "step 3\n"
        'Thread 0x00007f01 [loader] (most recent call first):\n  File "/a.py", line 1 in wait\n\n'
        'Current thread 0x00007f02 (most recent call first):\n  File "/home/ada/train.py", line 5 in main\n'
        '  File "/x/airflow_elastic/runtime/rank/main_module.py", line 9 in run\n'
        '  File "<frozen runpy>", line 88 in _run_code\nmore output\n'
    )
    assert main_thread(printed) == ("/home/ada/train.py:5 in main",)
    assert main_thread("nothing\n") == ()
    assert main_thread("Thread 0x01 (most recent call first):\n  <no Python frame>\n") == ()
