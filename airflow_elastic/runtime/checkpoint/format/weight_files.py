"""Files of weights in everybody's formats: a state dict as `torch.save` writes it, safetensors, and several of either.

Nothing in them is executed: of a `torch.save` only tensors are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from airflow_elastic.runtime.checkpoint.format.compatibility import is_extra
from airflow_elastic.spec.errors import InvalidInput

#: How a file's name ends, by format.
SUFFIXES = {".pt": "torch", ".pth": "torch", ".bin": "torch", ".safetensors": "safetensors"}

#: And that of one which says in which files the weights are, as Hugging Face's libraries write it.
INDEX = ".index.json"


def read(name: str, local: Callable[[str], Path]) -> dict[str, Any]:
    """The tensors of a file, or of those that an index names, on the CPU.

    Args:
        name: of the file; how it ends says the format.
        local: gives where a file of its folder can be read, by its name.

    Raises:
        InvalidInput: it is of no format that is known, or not of the one that its name says.
        OSError: it cannot be read.
    """
    if not name.endswith(INDEX):
        return {"torch": _read_torch, "safetensors": _read_safetensors}[format_of(name, INDEX)](local(name))
    found: dict[str, Any] = {}
    for part in _parts(local(name)):
        found |= read(part, local)
    return found


def write(path: Path, weights: dict[str, Any], about: dict[str, str], kind: str) -> None:
    """Write tensors into a file of a format. Raises InvalidInput where that cannot hold them, and OSError."""
    {"torch": _write_torch, "safetensors": _write_safetensors}[kind](weights, path, about)


def format_of(name: str, *more: str) -> str:
    """By how a file's name ends. Raises InvalidInput, which names what is allowed, with `more` of it."""
    found = SUFFIXES.get(Path(name).suffix)
    if found is None:
        allowed = ", ".join((*SUFFIXES, *more))
        raise InvalidInput(f"{name}: given a name that says no format; allowed: one that ends with {allowed}")
    return found


def _parts(index: Path) -> list[str]:
    """The files that an index names."""
    try:
        said = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted({str(part) for part in said.values()})
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{index}: is no index of weights: it has no `weight_map` of files") from error
    for name in names:
        if Path(name).name != name or name.endswith(INDEX):
            raise InvalidInput(f"{index}: names {name!r}; allowed: files of weights beside it")
    return names


def _read_torch(path: Path) -> dict[str, Any]:
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:  # of the disk
        raise
    except Exception as error:  # of many kinds, by what is wrong with the file
        raise InvalidInput(f"{path} is no state dict that torch.save has written: {error}") from error
    if not isinstance(weights, dict):
        raise InvalidInput(
            f"{path}: given {type(weights).__name__}; allowed: a state dict, as model.state_dict() is"
        )
    if nested := [name for name, one in weights.items() if isinstance(one, dict) and not is_extra(str(name))]:
        raise InvalidInput(
            f"{path}: given a dict with {', '.join(map(repr, nested))} in it; allowed: a state dict, as "
            f"model.state_dict() is. Save that one alone: torch.save(torch.load(file)[{nested[0]!r}], 'model.pt')"
        )
    return weights


def _write_torch(weights: dict[str, Any], path: Path, about: dict[str, str]) -> None:
    with path.open("wb") as file:  # given the path, torch wants something before the last dot of its name
        torch.save(weights, file)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise InvalidInput(
            "a .safetensors file needs a package that is not installed here: pip install "
            "'airflow-elastic[safetensors]', or use a .pt file"
        ) from None
    return safetensors.torch


def _read_safetensors(path: Path) -> dict[str, Any]:
    library = _safetensors()
    try:
        weights: dict[str, Any] = library.load_file(path)
    except OSError:
        raise
    except Exception as error:
        raise InvalidInput(f"{path} is no safetensors file: {error}") from error
    return weights


def _write_safetensors(weights: dict[str, Any], path: Path, about: dict[str, str]) -> None:
    if others := sorted(name for name, value in weights.items() if not torch.is_tensor(value)):
        raise InvalidInput(
            f"safetensors holds tensors only, and the model has {', '.join(others)}: write a .pt file"
        )
    library = _safetensors()
    try:
        library.save_file(weights, path, metadata=about)
    except KeyError as error:
        raise InvalidInput(
            f"safetensors has no {error.args[0]}, and the model has: write a .pt file"
        ) from error
