"""The tests that look for leaks see that of a small process beside a large one, and memory without a name."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from tests.support.machine import usage

#: What a rank and its agent may use.
PLAIN = {
    "rank-0 processes": 1,
    "rank-0 threads": 12,
    "rank-0 descriptors": 60,
    "rank-0 bytes": 400 << 20,
    "agent processes": 2,
    "agent threads": 6,
    "agent descriptors": 30,
    "agent bytes": 300 << 20,
    "shared files": 8,
    "shared bytes": 1 << 20,
}


def test_what_stays_about_the_same_does_not_grow() -> None:
    odd = {**PLAIN, "agent descriptors": 32, "agent processes": 3, "rank-0 bytes": 407 << 20}
    assert usage.grows([PLAIN, PLAIN, odd, PLAIN, odd, odd, odd, odd]) is None


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("agent descriptors", 1),
        ("agent threads", 1),
        ("agent bytes", 2 << 20),
        ("rank-0 bytes", 2 << 20),
        ("fork-server processes", 1),
        ("shared files", 1),
        ("shared bytes", 2 << 20),
    ],
)
def test_what_grows_a_little_each_time_grows(name: str, more: int) -> None:
    uses = [{**PLAIN, name: PLAIN.get(name, 0) + number * more} for number in range(12)]
    assert (usage.grows(uses) or "").startswith(f"{name}: ")


def test_memory_without_a_name_is_seen_while_it_is_open_or_mapped() -> None:
    mine, here = os.memfd_create("mine"), Path("/proc/self")
    os.pwrite(mine, b"x" * 3 * mmap.PAGESIZE, 0)
    inode = os.fstat(mine).st_ino
    assert dict(usage._shared(here))[inode] == 3 * mmap.PAGESIZE
    with mmap.mmap(mine, mmap.PAGESIZE):
        os.close(mine)
        assert dict(usage._shared(here))[inode] == 3 * mmap.PAGESIZE
    assert inode not in dict(usage._shared(here))
