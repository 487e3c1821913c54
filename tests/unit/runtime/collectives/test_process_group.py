"""Joining the other ranks: what cannot be is refused in words."""

from __future__ import annotations

import pytest
import torch

from airflow_elastic.runtime.collectives.process_group import join
from airflow_elastic.spec.errors import InvalidInput


def test_a_rank_without_a_gpu_of_its_own_is_told_what_to_change() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(
        InvalidInput, match=rf"local rank {count} has no GPU: its worker sees {count}; start as many"
    ):
        join(0, 1, torch.device("cuda", count), None, 1.0)
