"""What we ask of the kernel."""

from __future__ import annotations

import os
import resource

import pytest

from airflow_elastic.adapters.host.processes import readable


def test_there_may_be_any_number_of_files_open() -> None:
    """`select.select` knows 1,024."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most <= 1024:
        pytest.skip("no process may have more than 1,024 files here")
    read, write = os.pipe()
    high = most - 1
    os.dup2(read, high)
    try:
        assert not readable(high, 0.0)
        os.write(write, b".")
        assert readable(high)
    finally:
        for descriptor in (read, write, high):
            os.close(descriptor)
