"""A specification from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from airflow_elastic.spec.errors import InvalidInput, Problem, SpecError
from airflow_elastic.spec.run import RunSpec

_EXAMPLE = "a mapping such as `command: [train.py]`"


def read_plain(path: str) -> dict[str, Any]:
    """The plain values of a specification file, not yet checked.

    Raises:
        InvalidInput: it cannot be read, is no YAML, or no mapping.
    """
    try:
        text = Path(path).read_bytes().decode()
    except OSError as error:
        raise InvalidInput(f"{path}: {(error.strerror or str(error)).lower()}; name a YAML file") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{path}: it is no text, so it cannot be a YAML specification") from None
    try:
        plain = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidInput(f"{path}: it is no YAML: {_in_one_line(error)}") from None
    except RecursionError:
        raise InvalidInput(f"{path}: it is nested too deeply for a specification") from None
    if plain is None:
        raise InvalidInput(f"{path}: it is empty; wanted is {_EXAMPLE}")
    if not isinstance(plain, dict):
        raise InvalidInput(f"{path}: it holds {_kind(plain)}; wanted is {_EXAMPLE}")
    return plain


def build(plain: dict[str, Any], path: str | None = None) -> RunSpec:
    """The specification of plain values, which came from `path` in the main. Raises SpecError."""
    try:
        return RunSpec.from_dict(plain)
    except SpecError as error:
        raise in_file(error, path) from None


def in_file(error: SpecError, path: str | None) -> SpecError:
    """The same problems, told with the file they are in."""
    if path is None:
        return error
    first, *others = error.problems
    return SpecError(Problem(f"{path}: {first.path}", first.given, first.allowed), *others)


def _in_one_line(error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is not None and problem:
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    return " ".join(str(error).split())


def _kind(value: object) -> str:
    return "a list" if isinstance(value, list) else f"a single value, {str(value)[:40]!r}"
