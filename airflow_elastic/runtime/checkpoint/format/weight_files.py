"""Files of weights in common formats: a state dict from `torch.save`, safetensors, and an index of several files.

No code in them is run: from a file of `torch.save` only tensors are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from airflow_elastic.runtime.checkpoint.format.compatibility import is_extra
from airflow_elastic.spec.errors import InvalidInput

#: The formats by the suffix of a file's name.
SUFFIXES = {".pt": "torch", ".pth": "torch", ".bin": "torch", ".safetensors": "safetensors"}

#: The suffix of an index, which lists the files that hold the weights, as Hugging Face's libraries write it.
INDEX = ".index.json"


def read(name: str, local: Callable[[str], Path]) -> dict[str, Any]:
    """The tensors of a file, or of all files in an index, on the CPU.

    Args:
        name: of the file; its suffix says the format.
        local: returns the path at which a file of that folder can be read, by its name.

    Raises:
        InvalidInput: the suffix is not known, or the file has another format than its suffix says.
        OSError: it cannot be read.
    """
    if not name.endswith(INDEX):
        return {"torch": _read_torch, "safetensors": _read_safetensors}[format_of(name, INDEX)](local(name))
    found: dict[str, Any] = {}
    for part in _parts(local(name)):
        found |= read(part, local)
    return found


def write(path: Path, weights: dict[str, Any], about: dict[str, str], kind: str) -> None:
    """Write tensors into a file of this format. Raises InvalidInput if it cannot hold them, and OSError."""
    {"torch": _write_torch, "safetensors": _write_safetensors}[kind](weights, path, about)


def format_of(name: str, *more: str) -> str:
    """The format by a file's suffix. Raises InvalidInput, which lists the allowed suffixes and `more`."""
    found = SUFFIXES.get(Path(name).suffix)
    if found is None:
        allowed = ", ".join((*SUFFIXES, *more))
        raise InvalidInput(
            f"{name}: given a name of no known format; allowed: a name that ends with {allowed}"
        )
    return found


def _parts(index: Path) -> list[str]:
    """The files that an index names."""
    try:
        said = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted({str(part) for part in said.values()})
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{index}: is no index of weights, as it has no `weight_map` of files") from error
    for name in names:
        if Path(name).name != name or name.endswith(INDEX):
            raise InvalidInput(f"{index}: names {name!r}; allowed: files of weights beside it")
    return names


def _read_torch(path: Path) -> dict[str, Any]:
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:  # of the disk
        raise
    except Exception as error:  # torch raises many kinds for bad files
        raise InvalidInput(f"{path} is no state dict that torch.save has written: {error}") from error
    if not isinstance(weights, dict):
        raise InvalidInput(
            f"{path}: given {type(weights).__name__}; allowed: a state dict as from model.state_dict()"
        )
    if nested := [name for name, one in weights.items() if isinstance(one, dict) and not is_extra(str(name))]:
        raise InvalidInput(
            f"{path}: given a dict with {', '.join(map(repr, nested))} in it; allowed: a state dict as from "
            f"model.state_dict(). Save that one alone with torch.save(torch.load(file)[{nested[0]!r}], 'model.pt')"
        )
    return weights


def _write_torch(weights: dict[str, Any], path: Path, about: dict[str, str]) -> None:
    with path.open("wb") as file:  # torch.save refuses a path without a stem, as `.pt`
        torch.save(weights, file)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise InvalidInput(
            "a .safetensors file needs a package that is not installed here: pip install "
            "'airflow-elastic[safetensors]', or use a .pt file (`format=\"pt\"`, `--format pt`)"
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
