"""Frozen dataclasses to plain JSON values and back, driven by their type hints.

The run specification, the journal and every document under a run URI use this one codec, so the types say exactly what
is stored. Decoding is strict. An unknown field, a missing one or a value of another type is a `SpecError` with the path
of the field. Stdlib only, because the training side imports it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import enum
import math
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import islice
from typing import Any, TypeVar, Union, cast, get_args, get_origin

from airflow_elastic.spec.errors import ABSENT, Problem, SpecError

T = TypeVar("T")

#: Most values have one of these types, and need no decoding.
_EXACT = (str, int, bool)

_PLAIN: dict[type, str] = {str: "a string", int: "an integer", bool: "true or false", float: "a number"}


def encode(value: Any) -> Any:
    """Turn dataclasses, tuples and mappings into dicts and lists. Fields that hold None are left out."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if (names := _names(kind)) is not None:
        pairs = ((name, getattr(value, name)) for name in names)
        return {name: encode(item) for name, item in pairs if item is not None}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def decode(cls: type[T], data: Any) -> T:
    """Build `cls` from plain JSON values.

    Raises:
        SpecError: with all problems, each with the field's path, the given value and the allowed ones.
    """
    return cast("T", _decoder(cast("Any", cls))(data))


_Decoder = Callable[[Any], Any]


@cache  # cached: notes about the states of buddies have thousands of entries
def _decoder(hint: Any) -> _Decoder:
    """The decoder of values of this type."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (arg for arg in get_args(hint) if arg is not type(None))
        some = _decoder(inner)
        return lambda data: None if data is None else some(data)
    if dataclasses.is_dataclass(hint):
        return partial(_decode_dataclass, cast("type", hint))
    if origin is tuple:
        return partial(_decode_tuple, get_args(hint)[0])
    if origin is not None and issubclass(origin, Mapping):
        return partial(_decode_mapping, get_args(hint)[1])
    if hint is Any or hint is object:
        return lambda data: data
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return partial(_decode_enum, hint)
    return partial(_decode_plain, hint)


def _decode_plain(hint: Any, data: Any) -> Any:
    if type(data) is hint and hint in _EXACT:
        return data
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError:
            raise SpecError(Problem("", data, "a finite number")) from None
    if not isinstance(data, hint) or (hint is int and isinstance(data, bool)):
        raise SpecError(Problem("", data, _PLAIN.get(hint, hint.__name__)))
    if hint is float and not math.isfinite(data):
        raise SpecError(Problem("", data, "a finite number"))
    return data


def _decode_enum(hint: type[enum.Enum], data: Any) -> enum.Enum:
    try:
        return hint(data)
    except ValueError:
        raise SpecError(Problem("", data, "one of " + ", ".join(str(item.value) for item in hint))) from None


def _decode_tuple(inner: Any, data: Any) -> tuple[Any, ...]:
    if not isinstance(data, list | tuple):
        raise SpecError(Problem("", data, "a list"))
    if inner in _EXACT and set(map(type, data)) <= {inner}:
        return tuple(data)
    with contextlib.suppress(SpecError):
        return tuple(map(_decoder(inner), data))
    return tuple(_gather({str(i): (inner, item) for i, item in enumerate(data)}).values())


def _decode_mapping(inner: Any, data: Any) -> dict[str, Any]:
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise SpecError(Problem("", data, "a mapping with string keys"))
    return _gather({key: (inner, item) for key, item in data.items()})


def _decode_dataclass(cls: type, data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise SpecError(
            Problem("", data, f"a mapping with the fields {', '.join(_hints(cls))}{_such(cls, data)}")
        )
    decoders = _decoders(cls)
    if decoders.keys() >= data.keys() >= _required(cls):
        with contextlib.suppress(SpecError):
            return cls(**{name: decoders[name](item) for name, item in data.items()})
    return _decode_telling(cls, data)


def _such(cls: type, data: Any) -> str:
    """An example, if a bare number is given that the first field of the mapping accepts: `workers: 2`."""
    for name, decode in islice(_decoders(cls).items(), 1 if isinstance(data, int) else 0):
        with contextlib.suppress(SpecError):
            decode(data)
            return f", such as {{{name}: {data}}}"
    return ""


def _decode_telling(cls: type, data: Mapping[str, Any]) -> Any:
    """Decode a mapping that may be wrong, and report all its problems."""
    hints = _hints(cls)
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for key in data:
        if key not in hints:
            close = difflib.get_close_matches(str(key), hints, n=1)
            meant = f"; did you mean {close[0]}?" if close else ""
            text = f"there is no such field; there are {', '.join(hints)}{meant}"
            problems.append(Problem(str(key), ABSENT, text))
    for name in hints:
        if name in _required(cls) and name not in data:
            problems.append(Problem(name, ABSENT, "this field is required"))
    problems += _try_each({key: (hints[key], item) for key, item in data.items() if key in hints}, values)
    if problems:
        raise SpecError(*problems, *_further(cls, values))
    return cls(**values)


def _further(cls: type, values: Mapping[str, Any]) -> list[Problem]:
    """The problems among the values that could be decoded, so that one error shows all problems."""
    try:
        cls(**{**dict.fromkeys(_required(cls)), **values})
    except SpecError as error:
        return [p for p in error.problems if p.path.partition(".")[0] in values and not p.across]
    except (TypeError, AttributeError):  # a rule needs a value that could not be decoded
        pass
    return []


def _gather(parts: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Decode each part; collect the problems of all before raising."""
    values: dict[str, Any] = {}
    if problems := _try_each(parts, values):
        raise SpecError(*problems)
    return values


def _try_each(parts: Mapping[str, tuple[Any, Any]], values: dict[str, Any]) -> list[Problem]:
    """Decode each part into `values`, and return the problems of those that cannot be."""
    problems: list[Problem] = []
    for name, (hint, item) in parts.items():
        try:
            values[name] = _decoder(hint)(item)
        except SpecError as error:
            problems += [p.at(f"{name}.{p.path}".rstrip(".")) for p in error.problems]
    return problems


@cache
def _names(kind: type) -> tuple[str, ...] | None:
    """The fields of a dataclass; None for any other type."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


@cache
def _decoders(cls: type) -> dict[str, _Decoder]:
    return {name: _decoder(hint) for name, hint in _hints(cls).items()}


@cache
def _required(cls: type) -> frozenset[str]:
    """The fields without a default."""
    return frozenset(
        f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING
    )
