"""What of a state is no tensor, as bytes and back: counters, settings, random states, objects of the script's own.

Most of them are small and plain, and torch's way takes as long over one as a copy of some megabytes; so it is for
those that hold a tensor. What begins like a zip archive is torch's.
"""

from __future__ import annotations

import io
import pickle
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch.distributed.tensor import DTensor

from airflow_elastic.spec.errors import InvalidInput

_ARCHIVE = b"PK"


def to_bytes(key: str, value: Any) -> bytes:
    """Serialise a value.

    Args:
        key: its name in the state.
        value: anything that can be pickled, tensors within it included.

    Raises:
        InvalidInput: it holds a part of a tensor only.
    """
    buffer = io.BytesIO()
    try:
        _Plain(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    except _Refused:
        return _with_tensors(key, value)
    return buffer.getvalue()


def from_bytes(data: bytes) -> Any:
    """The value again, its tensors on the CPU: those of all ranks would lie on the first GPU, where there is one.

    Runs whatever code the bytes name: for bytes whose checksum says that we wrote them.
    """
    if data.startswith(_ARCHIVE):
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
    return pickle.loads(data)  # noqa: S301 - see above


def _with_tensors(key: str, value: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer, pickle_module=_WHOLE)
    except _Refused:
        raise InvalidInput(
            f"{key} holds a DTensor in an object that is kept as one value, as it is on the first rank: its other "
            "parts would be lost. Keep it in dicts, lists or tuples, or in a module of its own"
        ) from None
    return buffer.getvalue()


class _Refused(Exception):
    """A value holds what a pickler does not take."""


class _Without(pickle.Pickler):
    """Takes no values of these types, however deep they lie."""

    refused: ClassVar[tuple[type, ...]]

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, self.refused):
            raise _Refused
        return NotImplemented


class _Plain(_Without):
    """For what torch need not serialise."""

    refused = (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)


class _Whole(_Without):
    """For what is no part of a tensor only."""

    refused = (DTensor,)


#: As torch wants to have it.
_WHOLE: Any = SimpleNamespace(__name__="pickle", Pickler=_Whole)
