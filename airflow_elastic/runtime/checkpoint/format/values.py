"""Convert values that are no tensors to bytes and back: counters, settings, random states, objects of the script.

`torch.save` takes as long for one of them as to copy some megabytes, so only values with a tensor in them go through
it. Bytes that begin like a zip archive are from `torch.save`; others are a plain pickle. `safe_unpickling` decides
which types are allowed.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch.distributed.tensor import DTensor

from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.runtime.checkpoint.format.safe_unpickling import Unpickler, UntrustedType, check
from airflow_elastic.runtime.checkpoint.format.tensor_split import Rest
from airflow_elastic.spec.errors import InvalidInput

_ARCHIVE = b"PK\x03\x04"


def to_bytes(key: str, value: Any) -> bytes:
    """Serialise a value.

    Args:
        key: its name in the state.
        value: plain values, arrays and tensors in containers, and types that the script trusts.

    Raises:
        InvalidInput: it holds a DTensor, which is only a part of a tensor, or a type that would not be unpickled.
    """
    buffer = io.BytesIO()
    try:
        try:
            _Plain(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
        except _Refused:
            return _with_tensors(key, value)
    except UntrustedType as error:
        raise InvalidInput(
            f"{key.removesuffix('.rest')}{_place(value)} holds {error}, which no restore would unpickle. Allowed are "
            "plain values and containers of them, numpy's arrays, tensors, and types that the script trusts. Return "
            "such values from state_dict(). Or call torch.serialization.add_safe_globals([...]) before run.restore, "
            "and before the checkpoint is read elsewhere"
        ) from None
    return buffer.getvalue()


def from_bytes(key: str, data: bytes) -> Any:
    """Undo `to_bytes`. Tensors are on the CPU: else those of all ranks would be on the first GPU.

    Raises:
        InvalidInput: it has a type that is neither plain nor trusted by the script. No code of that type has run.
        CheckpointDamaged: the bytes are no pickle.
    """
    try:
        if data.startswith(_ARCHIVE):
            # Not torch.load, which would run a TorchScript archive.
            with torch.serialization._open_zipfile_reader(io.BytesIO(data)) as archive:
                load: Any = torch.serialization._load
                return load(archive, "cpu", _READING, encoding="utf-8")
        return Unpickler(io.BytesIO(data)).load()
    except UntrustedType as error:
        raise InvalidInput(
            f"{key} holds {error}, which is not unpickled: it is neither a plain value nor of a type that the script "
            "trusts. If the type is your own, call torch.serialization.add_safe_globals([...]) first"
        ) from None
    except Exception as error:  # damaged bytes can raise any kind
        raise CheckpointDamaged(f"{key} cannot be unpickled: {error!r}") from error


def _with_tensors(key: str, value: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer, pickle_module=_WHOLE, pickle_protocol=pickle.HIGHEST_PROTOCOL)
    except _Refused:
        raise InvalidInput(
            f"{key} holds a DTensor in an object that is saved as one value, by the first rank alone. The other ranks' "
            "parts would be lost. Keep it in dicts, lists or tuples, or in a module"
        ) from None
    return buffer.getvalue()


def _place(value: Any) -> str:
    """The path of the untrusted value in this one, as in Python: `['key'][0]`."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Rest):
        return _place(value.value)
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for name, one in items:
        try:
            _Pickler(io.BytesIO(), pickle.HIGHEST_PROTOCOL).dump(one)
        except UntrustedType:
            return f"[{name!r}]{_place(one)}"
    return ""


class _Refused(Exception):
    """A value holds an object of a type in `_Pickler.refused`."""


class _Pickler(pickle.Pickler):
    """Refuses values of these types at any depth, and types that would not be unpickled."""

    refused: ClassVar[tuple[type, ...]] = ()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, self.refused):
            raise _Refused
        check(value)
        return NotImplemented


class _Plain(_Pickler):
    """For values without tensors."""

    refused = (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)


class _Whole(_Pickler):
    """For values with whole tensors only."""

    refused = (DTensor,)


#: Stand-ins for the module `pickle`, with the attributes that torch uses.
_WHOLE: Any = SimpleNamespace(__name__="pickle", Pickler=_Whole)
_READING: Any = SimpleNamespace(__name__="pickle", Unpickler=Unpickler)
