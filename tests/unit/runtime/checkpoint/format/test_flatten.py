"""Names in a state are those of torch: checkpoints of earlier releases were written by these."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from airflow_elastic.runtime.checkpoint.format.flatten import flattened

TENSOR = torch.ones(2)

leaves = st.one_of(st.just(TENSOR), st.integers(), st.text(max_size=3), st.none(), st.tuples(st.just(TENSOR)))
keys = st.one_of(
    st.text(alphabet="ab.", max_size=3),
    st.integers(0, 3),
    st.sampled_from([numpy.float32(0.1), True, None, (1, 2)]),
)
states = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=12,
)


@given(st.dictionaries(keys, states, max_size=4))
def test_names_and_leaves_are_those_of_torch(state: dict[Any, Any]) -> None:
    try:
        expected, _ = flatten_state_dict(state)
    except ValueError:
        with pytest.raises(ValueError, match="two values by the name"):
            flattened(state)
        return
    found = flattened(state)
    assert [*found] == [*expected]
    assert all(one is other for one, other in zip(found.values(), expected.values(), strict=True))
