"""The capacity of this machine."""

from __future__ import annotations

import os

from airflow_elastic.engines.local.room import capacity
from airflow_elastic.spec.run import RunSpec, Workers


def test_own_workers_have_their_processors_also_while_they_are_idle() -> None:
    usable = len(os.sched_getaffinity(0))
    spec = RunSpec(command=("t.py",), workers=Workers(1, procs=1))
    free = [capacity(spec, own).free for own in range(usable + 3)]
    assert all(one is not None and 0 <= one <= usable - min(own, usable) for own, one in enumerate(free))
    assert "processors" in capacity(spec, 1).text


def test_memory_and_gpus_count_too() -> None:
    spec = RunSpec(command=("t.py",), workers=Workers(1, resources={"cpu": "1m", "memory": "1Ei"}))
    found = capacity(spec, 0)
    assert found.free == 0
    assert "by memory" in found.text
    assert found.claims == ()
