"""What processes use of their machine, measured on real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_elastic.adapters.host.gpus import GpuMeter
from airflow_elastic.adapters.host.usage import NetworkMeter, ProcessMeter

#: Starts a child, tells both numbers, and works until its input ends.
_PARENT = """
import subprocess, sys, os
child = subprocess.Popen([sys.executable, "-c", "b = bytearray(80 << 20); print(len(b), flush=True); input()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(os.getpid(), child.pid, flush=True)
sys.stdin.readline()
for _ in range(3_000_000):
    pass
print(sum(os.times()[:2]), flush=True)
sys.stdin.readline()
child.kill()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.communicate("\n\n")


def test_children_count_and_time_is_measured_between_two_calls(parent: subprocess.Popen[str]) -> None:
    assert parent.stdin is not None
    assert parent.stdout is not None
    pid, child = map(int, parent.stdout.readline().split())
    clock = iter([100.0, 110.0, 120.0])
    meter = ProcessMeter(clock=lambda: next(clock))
    first = meter.measure([pid])
    assert first.cpu is None
    assert first.pids == {pid, child}
    assert first.memory_bytes is not None
    assert 80 << 20 < first.memory_bytes < 400 << 20
    parent.stdin.write("\n")
    parent.stdin.flush()
    used = float(parent.stdout.readline())
    second = meter.measure([pid])
    assert second.cpu is not None
    assert 0.0 < second.cpu <= (used + 0.5) / 10.0


def test_processes_that_are_gone_use_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    meter = ProcessMeter()
    assert meter.measure([process.pid]).memory_bytes is None
    assert meter.measure([]).cpu is None


def test_the_network_is_measured_without_the_loopback(tmp_path: Path) -> None:
    (tmp_path / "self" / "net").mkdir(parents=True)
    clock = iter([0.0, 2.0, 3.0])
    meter = NetworkMeter(tmp_path, lambda: next(clock))

    def set_counters(received: int, sent: int) -> None:
        zeros = " 0" * 7
        lines = ["Inter-| Receive", " face |bytes", f"    lo: 999999{zeros} 999999{zeros}"]
        lines.append(f"  eth0: {received}{zeros} {sent}{zeros}")
        (tmp_path / "self" / "net" / "dev").write_text("\n".join(lines))

    set_counters(1000, 500)
    assert meter.measure() == (None, None)
    set_counters(3000, 900)
    assert meter.measure() == (1000.0, 200.0)
    set_counters(0, 0)  # counted from the start again
    assert meter.measure() == (0.0, 0.0)


def test_where_there_is_no_gpu_nothing_is_measured() -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU: tests/gpu measures it")
    assert GpuMeter().measure(None) is None
    assert GpuMeter().measure({os.getpid()}) is None
