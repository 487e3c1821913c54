"""Values that are no tensors: as bytes and back."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.runtime.values import from_bytes, to_bytes

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUES = st.recursive(PLAIN, lambda below: st.lists(below) | st.dictionaries(st.text(), below), max_leaves=8)


@given(VALUES)
def test_it_comes_back_with_its_types_and_signs(value: Any) -> None:
    assert repr(from_bytes(to_bytes("value", value))) == repr(value)


def test_random_states_come_back() -> None:
    for state in (random.getstate(), np.random.get_state()):
        assert repr(from_bytes(to_bytes("random.0", state))) == repr(state)


class Buffer:
    """An object of a script's own."""

    def __init__(self) -> None:
        self.seen = torch.arange(5).view(1, 5)
        self.again = self.seen.view(5)


def test_tensors_that_share_memory_within_an_object_still_do() -> None:
    found = from_bytes(to_bytes("buffer", Buffer()))
    assert torch.equal(found.seen, torch.arange(5).view(1, 5))
    found.seen += 1
    assert torch.equal(found.again, torch.arange(1, 6))


@pytest.mark.parametrize("value", [7, {"a": [None, "b"]}, {"a": torch.ones(3)}])
def test_what_earlier_versions_wrote_is_read(value: Any) -> None:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    assert repr(from_bytes(buffer.getvalue())) == repr(value)
