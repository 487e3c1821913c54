"""The types that values of a checkpoint may have, and an unpickler that makes no others.

A pickle names functions to call, and anyone who can write into a run's folder can write a checkpoint with correct
checksums. So this unpickler finds only the names that are listed here, which make values and have no other effect. It
also finds the types that the script trusts, by torch's own means: `torch.serialization.add_safe_globals`.
"""

from __future__ import annotations

import collections
import copyreg
import datetime
import decimal
import fractions
import io
import pathlib
import pickle
import uuid
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from types import BuiltinFunctionType, FunctionType
from typing import Any, ClassVar

import numpy as np
import torch
from torch.serialization import get_safe_globals

from airflow_elastic.runtime.checkpoint.format.tensor_split import Held, HeldArray, Rest


class UntrustedType(Exception):
    """A pickle refers to a name that is neither listed here nor trusted by the script."""


#: Objects that a pickle stores by their names.
_NAMED = (type, FunctionType, BuiltinFunctionType)


def _array(kind: object, shape: object, code: object) -> Any:
    """Instead of numpy's function: an empty array, which gets its state next."""
    return np.ndarray((0,), np.int8)


_numpys_frombuffer: Any = np.zeros(1).__reduce_ex__(5)[0]


def _frombuffer(buffer: object, *how: Any) -> Any:
    """Instead of numpy's function: it takes bytes only, because it would share the memory of any other buffer."""
    if type(buffer) not in (bytes, bytearray):
        raise UntrustedType(f"numpy's _frombuffer({type(buffer).__name__})")
    return _numpys_frombuffer(buffer, *how)


def _dtype(*said: Any) -> np.dtype[Any]:
    """Instead of `numpy.dtype`: no dtypes with fields or subarrays."""
    kind: np.dtype[Any] = np.dtype(*said)
    if kind.fields is not None or kind.subdtype is not None:
        raise UntrustedType(f"numpy.dtype({kind})")
    return kind


def _encode(text: str, encoding: str) -> bytes:
    """Instead of `codecs.encode`: only latin1, as old pickle protocols write bytes."""
    if encoding != "latin1":
        raise UntrustedType(f"_codecs.encode({encoding!r})")
    return text.encode(encoding)


_TYPES = (
    *(bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, slice),
    *(collections.OrderedDict, collections.Counter, collections.defaultdict, collections.deque),
    *(datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID, io.BytesIO, Held, HeldArray, Rest),
    *(torch.Size, torch.device, torch.Tensor, torch.nn.Parameter, torch.Generator),
    *(one for name, one in vars(torch).items() if name.endswith("Storage")),
)

_PATHS = (pathlib.PosixPath, pathlib.PurePosixPath)  # some versions of Python have them in `pathlib._local`

#: Functions that torch writes for tensors; each version of torch has some of them. Those for sparse tensors are
#: missing on purpose: no code would check the indices.
_REBUILD = (
    *("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_meta_tensor_no_storage"),
    *("_rebuild_parameter", "_rebuild_parameter_with_state", "_rebuild_qtensor"),
    *("_rebuild_device_tensor_from_numpy", "_rebuild_device_tensor_from_cpu_tensor"),
    "_rebuild_wrapper_subclass",
)

#: Names of both major versions of numpy. `ndarray` may be named, not called: it could take any bytes for objects.
_NUMPY = {
    "numpy.dtype": _dtype,
    "numpy.ndarray": "numpy.ndarray",
    **{
        f"numpy.{core}.{name}": one
        for core in ("core", "_core")
        for name, one in (
            ("multiarray._reconstruct", _array),
            ("multiarray.scalar", np.float64(0).__reduce__()[0]),
            ("numeric._frombuffer", _frombuffer),
        )
    },
}

_LISTED: dict[str, Any] = {
    **{f"{one.__module__}.{one.__qualname__}": one for one in _TYPES},
    **{f"airflow_elastic.runtime.apart.{one.__name__}": one for one in (Held, HeldArray, Rest)},  # until 0.1
    **{f"pathlib{where}.{one.__name__}": one for where in ("", "._local") for one in _PATHS},
    **{f"torch._utils.{name}": getattr(torch._utils, name) for name in _REBUILD if hasattr(torch._utils, name)},
    **{
        f"torch.{name}": one
        for name, one in vars(torch).items()
        if isinstance(one, torch.dtype | torch.qscheme)
    },
    **_NUMPY,
    "builtins.Ellipsis": ...,
    "_codecs.encode": _encode,
    "torch.serialization._get_layout": torch.serialization._get_layout,
    "torch._tensor._rebuild_from_type_v2": torch._tensor._rebuild_from_type_v2,
}  # fmt: skip

_MADE = frozenset(one for one in _LISTED.values() if isinstance(one, type))

#: Types whose values are not pickled as a name; filled by `_name_of`.
_IN_PIECES: set[type] = set()


def check(value: Any) -> None:
    """Check that a value that is being pickled could be unpickled.

    Raises:
        UntrustedType: a pickle refers to it by a name that is neither listed nor trusted by the script.
    """
    if isinstance(value, np.dtype):
        reduced: Any = value.__reduce__()
        if len(reduced) != 3 or not _is_simple(reduced[0](*reduced[1]), reduced[2]):
            raise UntrustedType(f"numpy.dtype({value})")
    elif (name := _name_of(value)) is not None:
        _find(name)


def _name_of(value: Any) -> str | None:
    if isinstance(value, _NAMED):
        return f"{value.__module__}.{value.__qualname__}"
    kind = type(value)
    if kind in _IN_PIECES:
        return None
    reduce = copyreg.dispatch_table.get(kind)
    reduced = reduce(value) if reduce else value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if isinstance(reduced, str):
        return f"{pickle.whichmodule(value, reduced)}.{reduced}"  # type: ignore[attr-defined]
    _IN_PIECES.add(kind)
    return None


def _find(name: str) -> Any:
    if name in _LISTED:
        return _LISTED[name]
    for one in get_safe_globals():
        trusted, called = one if isinstance(one, tuple) else (one, f"{one.__module__}.{one.__qualname__}")
        if called == name:
            return trusted
    raise UntrustedType(name)


def _is_simple(kind: np.dtype[Any], state: Any) -> bool:
    """Whether a pickled state of a dtype is the dtype's own: a forged one can make numpy take bytes for objects."""
    own: Any = kind.__reduce__()
    return (
        isinstance(state, tuple)
        and state[2:5] == (None, None, None)
        and state[5:8] == own[2][5:8]
        and (len(state) == 8 or kind.kind in "mM")
    )


#: Opcodes for names in the extension registry (`copyreg.add_extension`): they can bypass `find_class`.
_NUMBERED = [code[0] for code in (pickle.EXT1, pickle.EXT2, pickle.EXT4)]


class Unpickler(pickle._Unpickler):
    """Makes values of the types that are listed or trusted, and calls no other code.

    A pickled state may set attributes of a class. Python's unpickler in C has no hook for states, so this class extends
    the one in Python.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if code not in _NUMBERED
    }
    proto: int
    stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        if self.proto < 3:
            module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        return _find(f"{module}.{name}")

    def load_build(self) -> None:
        state, value = self.stack[-1], self.stack[-2]
        if isinstance(value, _NAMED):
            raise UntrustedType(f"attributes of {value.__module__}.{value.__qualname__}")
        # numpy would free its memory, which another array may share
        if isinstance(value, np.ndarray) and value.size:
            raise UntrustedType("a second state of one of numpy's arrays")
        if isinstance(value, np.dtype) and not _is_simple(value, state):
            raise UntrustedType(f"numpy.dtype({value}) with {state}")
        super().load_build()  # type: ignore[misc]

    def load_newobj_ex(self) -> None:
        kind, _, named = self.stack[-3:]
        # No listed type needs keyword arguments, and torch's types take addresses of memory by them.
        if named and kind in _MADE:
            raise UntrustedType(f"{kind.__module__}.{kind.__qualname__} with {', '.join(map(str, named))}")
        super().load_newobj_ex()  # type: ignore[misc]

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex
