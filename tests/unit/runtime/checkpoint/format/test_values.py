"""Values that are no tensors: as bytes and back."""

from __future__ import annotations

import builtins
import codecs
import collections
import copyreg
import datetime
import decimal
import enum
import fractions
import functools
import io
import operator
import os
import pathlib
import pickle
import random
import subprocess
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.runtime.checkpoint.format.tensor_split import split_tensors
from airflow_elastic.runtime.checkpoint.format.values import from_bytes, to_bytes
from airflow_elastic.spec.errors import InvalidInput

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUES = st.recursive(PLAIN, lambda below: st.lists(below) | st.dictionaries(st.text(), below), max_leaves=8)


@given(VALUES)
def test_it_comes_back_with_its_types_and_signs(value: Any) -> None:
    assert repr(from_bytes("value", to_bytes("value", value))) == repr(value)


def test_random_states_come_back() -> None:
    for state in (random.getstate(), np.random.get_state()):
        assert repr(from_bytes("random.0", to_bytes("random.0", state))) == repr(state)


class Buffer:
    """An object of a script's own."""

    def __init__(self) -> None:
        self.seen = torch.arange(5).view(1, 5)
        self.again = self.seen.view(5)


def test_tensors_that_share_memory_within_an_object_still_do() -> None:
    with torch.serialization.safe_globals([Buffer]):
        found = from_bytes("buffer", to_bytes("buffer", Buffer()))
    assert torch.equal(found.seen, torch.arange(5).view(1, 5))
    found.seen += 1
    assert torch.equal(found.again, torch.arange(1, 6))


@pytest.mark.parametrize("value", [7, {"a": [None, "b"]}, {"a": torch.ones(3)}, [{b"a"}, {1j}], np.arange(3)])
def test_what_earlier_versions_wrote_is_read(value: Any) -> None:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    assert repr(from_bytes("value", buffer.getvalue())) == repr(value)


DATES = [datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), datetime.timedelta(3)]
ARRAYS = [
    *(
        np.arange(6).reshape(2, 3),
        np.arange(6).reshape(2, 3).T,
        np.arange(6)[::2],
        np.array(3.0),
        np.float32(3),
    ),
    *(
        np.array(["a", "bc"]),
        np.array([b"a"]),
        np.array([{"a": 1}, None], dtype=object),
        np.dtype(">i4"),
    ),
    *(
        np.array(["2026-01-02"], dtype="M8[ns]"),
        np.dtype("f4"),
        np.dtype("M8[s]"),
        np.array([True]),
        np.int64(7),
    ),
]
OF_TORCH = [
    *(
        torch.float32,
        torch.device("cpu"),
        torch.Size([2]),
        torch.nn.Parameter(torch.ones(2)),
    ),
    *(collections.deque([torch.ones(2)], maxlen=3), collections.defaultdict(list, a=[torch.ones(2)])),
    *(torch.ones(2, dtype=torch.bfloat16), {"a": np.arange(3), "b": torch.arange(3)}),
]
OTHERS = [
    *(
        1j,
        {1, 2},
        frozenset("a"),
        bytearray(b"a"),
        b"",
        range(3),
        slice(1, 2),
        ...,
        [1 << 3000],
        (None, True),
    ),
    *(collections.OrderedDict(a=1), collections.Counter("aab"), collections.deque([1], maxlen=3)),
    *(
        collections.defaultdict(int, a=1),
        decimal.Decimal("1.10"),
        fractions.Fraction(1, 3),
        pathlib.Path("a/b"),
    ),
]


@pytest.mark.parametrize("value", [*DATES, *ARRAYS, *OF_TORCH, *OTHERS], ids=repr)
def test_plain_values_come_back(value: Any) -> None:
    """Also beside a tensor, as torch writes them, and as earlier versions had it do so."""
    for held in (value, {"value": value, "beside": collections.deque([torch.ones(1)])}):
        found = from_bytes("value", to_bytes("value", held))
        assert (repr(found), type(found)) == (repr(held), type(held))
    buffer = io.BytesIO()
    torch.save(value, buffer)
    assert repr(from_bytes("value", buffer.getvalue())) == repr(value)


def test_a_generator_comes_back() -> None:
    generator = torch.Generator().manual_seed(3)
    found = from_bytes("value", to_bytes("value", [generator]))[0]
    assert torch.equal(torch.rand(3, generator=found), torch.rand(3, generator=generator))


class Mood(enum.Enum):
    """Of a script's own."""

    GOOD = 1


@dataclass
class Page:
    """Of a script's own."""

    words: Any


class Row(tuple[Any, ...]):
    """Of a script's own."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Mood.GOOD, "Mood"),
        (Page(1), "Page"),
        (Page(torch.ones(2)), "Page"),
        (Row((1,)), "Row"),
        (Page, "Page"),
        (test_random_states_come_back, "test_random_states_come_back"),
    ],
)
def test_what_would_not_be_unpickled_is_refused_when_it_is_saved(value: Any, named: str) -> None:
    rest, _ = split_tensors({"days": [1, {"mon": value}]})
    with pytest.raises(InvalidInput) as refused:
        to_bytes("other.diary.rest", rest)
    assert str(refused.value).startswith(
        f"other.diary['days'][1]['mon'] holds {__name__}.{named}, which no restore"
    )
    assert "torch.serialization.add_safe_globals" in str(refused.value)


@pytest.mark.parametrize("value", [np.zeros(2, dtype=[("a", "f4")]), np.add, len, lambda: 0, os, "".join])
def test_so_is_what_cannot_be_told_from_something_hostile(value: Any) -> None:
    with pytest.raises((InvalidInput, TypeError)):
        to_bytes("value", [value])


@pytest.mark.parametrize("value", [Mood.GOOD, Page(1), Page([torch.ones(2)]), Row((1,))], ids=repr)
def test_what_a_script_trusts_is_unpickled_and_only_then(value: Any) -> None:
    with torch.serialization.safe_globals([type(value)]):
        data = to_bytes("value", value)
        assert repr(from_bytes("value", data)) == repr(value)
    with pytest.raises(InvalidInput, match=rf"value holds {__name__}\.{type(value).__name__}, which is not"):
        from_bytes("value", data)
    with torch.serialization.safe_globals([(type(value), f"{__name__}.{type(value).__name__}")]):
        assert repr(from_bytes("value", data)) == repr(value)


class Calls:
    """Whoever unpickles it calls something."""

    def __init__(self, call: Any, *given: Any, state: Any = None) -> None:
        self.reduced = (call, given) if state is None else (call, given, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


def hostile(made: str) -> list[Any]:
    """Each would make a file, or get hold of what can, or of memory that it has no business with."""
    touch = (pathlib.Path.touch, pathlib.Path(made))
    return [
        Calls(os.system, f"touch {made}"),
        Calls(subprocess.check_call, ["touch", made]),
        Calls(*touch),
        Calls(builtins.open, made, "w"),
        Calls(builtins.eval, f"open({made!r}, 'w')"),
        Calls(builtins.getattr, "", "join"),
        Calls(functools.partial, *touch),
        Calls(operator.methodcaller, "touch"),
        Calls(builtins.map, *touch),
        Calls(codecs.lookup, "latin1"),
        Calls(copyreg._reconstructor, Page, object, None),
        Calls(np.load, made),
        Calls(torch.load, made),
        Calls(torch.hub.load_state_dict_from_url, made),
        Calls(pickle.loads, b"N."),
        Calls(np.frombuffer, b"12345678", object),
        # a type that lies about itself, and would take eight bytes for an object
        Calls(np.dtype, "O8", False, True, state=(3, "|", None, None, None, -1, -1, 0)),
        Calls(np.dtype, "V8", False, True, state=(3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)),
        Calls(np.ndarray, (1,), "O", b"12345678"),
        Calls(np.dtype, [("a", "O")]),
        # would share the memory of an array of objects, as numbers
        Calls(np.zeros(1).__reduce_ex__(5)[0], np.array([None], dtype=object), "i8", (1,), "C"),
    ]


@pytest.mark.parametrize("which", range(len(hostile(""))))
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_nothing_hostile_is_called(which: int, protocol: int, tmp_path: pathlib.Path) -> None:
    value, made, archive = hostile(str(tmp_path / "made"))[which], tmp_path / "made", io.BytesIO()
    torch.save({"value": value, "tensor": torch.ones(2)}, archive, pickle_protocol=max(2, protocol))
    for data in (pickle.dumps([value], protocol), archive.getvalue()):
        with pytest.raises((InvalidInput, CheckpointDamaged)):
            from_bytes("value", data)
    assert not made.exists()


def given_twice(array: np.ndarray[Any, Any]) -> bytes:
    """An array that is given its state twice: what shares the first one's memory would be left with none."""
    state: Any = array.__reduce__()[2]
    return pickle.dumps(array, 2)[:-1] + pickle.dumps(state, 2)[2:-1] + b"b."


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x05torch\x8c\x0aTensor.new\x93.",  # an attribute of something that is listed
        b"\x80\x02ccollections\nCounter\nN}X\x06\x00\x00\x00updateK\x01s\x86b.",  # an attribute of a class
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN}X\x01\x00\x00\x00aK\x01s\x86b.",  # one of a function
        b"\x80\x02\x82\x01.",  # a number that the process has given something
        # addresses of memory, by the names under which torch's types take them
        b"\x80\x04\x8c\x05torch\x8c\x06Tensor\x93)}\x8c\x05cdataK\x01s\x92.",
        b"\x80\x04\x8c\x0dtorch.storage\x8c\x0eUntypedStorage\x93K\x08\x85}\x8c\x09allocatorK\x01s\x92.",
        given_twice(np.arange(4)),
        b"PK\x03\x04 is no archive",
        b"PKis none either",
        b"",
    ],
)
def test_nor_is_what_is_written_by_hand(data: bytes) -> None:
    with pytest.raises((InvalidInput, CheckpointDamaged), match="value"):
        from_bytes("value", data)
    assert collections.Counter("aa") + collections.Counter("a") == {"a": 3}
