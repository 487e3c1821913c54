"""Whether memory was short when a rank was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_elastic.runtime.agent.reporting.memory_shortage import MemoryShortage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine with 64 GB, of which 32 are free, on which nobody waits."""
    (tmp_path / "pressure").mkdir()
    show(tmp_path)
    return tmp_path


def show(proc: Path, *, free: int = 32_000_000, kills: int = 7, waiting: str = "0.00") -> None:
    (proc / "meminfo").write_text(f"MemTotal: 64000000 kB\nMemFree: 1 kB\nMemAvailable: {free} kB\nHuge: 0\n")
    (proc / "vmstat").write_text(f"nr_free 1\noom_kill {kills}\nthp 0\n")
    (proc / "pressure" / "memory").write_text(
        f"some avg10=99.00 avg60=0.00 avg300=0.00 total=5\nfull avg10={waiting} avg60=0.00 avg300=0.00 total=5\n"
    )


def test_where_there_is_memory_nothing_is_told(proc: Path) -> None:
    shortage = MemoryShortage(proc)
    shortage.look()
    assert shortage.signs() is None


def test_what_was_free_before_the_rank_died_counts_and_not_what_is_afterwards(proc: Path) -> None:
    shortage = MemoryShortage(proc)
    show(proc, free=300_000)
    shortage.look()
    show(proc)
    shortage.look()
    assert shortage.signs() == "0.31 of 65.5 GB were free"


def test_the_kernels_kills_and_those_who_wait_are_signs(proc: Path) -> None:
    shortage = MemoryShortage(proc)
    show(proc, kills=8, waiting="23.40")
    assert shortage.signs() == (
        "the kernel has killed for memory on this machine, processes waited for memory 23% of the last 10 s"
    )
    shortage.begin()
    show(proc, kills=8)
    assert shortage.signs() is None, "it was none of these ranks"


def test_a_system_that_says_nothing_has_no_signs(tmp_path: Path) -> None:
    shortage = MemoryShortage(tmp_path / "nothing")
    shortage.look()
    assert shortage.signs() is None


def test_the_real_one_can_be_read() -> None:
    shortage = MemoryShortage()
    shortage.look()
    shortage.signs()
