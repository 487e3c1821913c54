"""What is left of process groups when a rank leaves them."""

from __future__ import annotations

import sys

import torch.distributed as dist

from airflow_elastic.runtime.collectives.connections import forget_groups, noted


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
