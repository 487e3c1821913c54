"""Weights in the formats of everybody: a plain state dict as `torch.save` writes it, and safetensors.

`python -m airflow_elastic.runtime.weights RUN_URI FILE [STEP]` is what `airflow-elastic checkpoint export` runs.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)

from airflow_elastic.adapters.durable import temp_file
from airflow_elastic.adapters.store import Store
from airflow_elastic.adapters.stores import open_store
from airflow_elastic.runtime.apart import packed
from airflow_elastic.runtime.fit import TO_READ, check_fit, kind_of, with_room_for_extra
from airflow_elastic.runtime.loading import Told, untold
from airflow_elastic.runtime.reading import read_weights
from airflow_elastic.spec.errors import ElasticError, InvalidInput
from airflow_elastic.spec.manifest import Manifest

#: How a file's name ends, by format.
SUFFIXES = {".pt": "torch", ".pth": "torch", ".bin": "torch", ".safetensors": "safetensors"}


def export_weights(
    run: str | Store, path: str | Path, step: int | None = None, told: Told = untold
) -> Manifest:
    """Write the model of a run's checkpoint into one file, whole, whatever number of ranks has saved it.

    Args:
        run: the run URI, or the store that lies there.
        path: of the file, or an s3:// URI; made or replaced at once. `.pt`, `.pth` and `.bin` are a state dict as
            `torch.save` writes it, for `torch.load(path, weights_only=True)`; `.safetensors` has step and run in its
            metadata.
        step: of the checkpoint. Default: the newest one that is whole.
        told: called with the bytes that are read so far, and all that are to be. Default: nobody is told.

    Returns:
        The manifest of the checkpoint.

    Raises:
        InvalidInput: the file's name says no format, or the format cannot hold the model.
        RunMissing, CheckpointDamaged: as for `load_model`.
        OSError, StoreError: the file cannot be written.
    """
    name = str(path)
    write = {"torch": _write_torch, "safetensors": _write_safetensors}[_format_of(Path(name))]
    place, scheme, key = _apart(name)
    shelf = open_store(place) if scheme else None
    manifest, weights = read_weights(run, step, told)
    about = {"step": str(manifest.step), "run": run if isinstance(run, str) else run.uri}
    if shelf is not None:
        with tempfile.TemporaryDirectory(prefix="elastic-weights-") as folder:
            write(weights, Path(folder, key), about)
            shelf.upload(key, Path(folder, key))
        return manifest
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with temp_file(path.absolute().parent) as (temporary, created):
        mode = stat.S_IMODE((path.stat() if path.exists() else os.fstat(created.fileno())).st_mode)
        write(weights, temporary, about)
        temporary.chmod(mode)  # safetensors makes a file that nobody else can read
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    return manifest


def load_weights(source: str | Path, model: torch.nn.Module) -> None:
    """Load weights that something else has trained, before `run.restore`: where there is a checkpoint, that counts.

    Nothing in the file is executed: of a `torch.save` only tensors are read.

    Args:
        source: a path, or an s3:// URI; `.pt`, `.pth` and `.bin` are a state dict, `.safetensors` is safetensors.
        model: wrapped (DDP, FSDP2) or not. It has to have exactly the parameters and buffers of the file, of
            the same dtypes: convert it after that, before it is wrapped, where it is to be of another.

    Raises:
        InvalidInput: there is no such file, it is of another format, or of another model or dtype. The model is
            unchanged.
    """
    name = str(source)
    read = {"torch": _read_torch, "safetensors": _read_safetensors}[_format_of(Path(name))]
    with tempfile.TemporaryDirectory(prefix="elastic-weights-") as temporary:
        weights = read(_local(name, Path(temporary)))
    kinds = {f"model.{key}": kind_of(value) for key, value in weights.items()}
    state = with_room_for_extra(packed(get_model_state_dict(model)), kinds)
    check_fit({"model": state}, kinds, name, TO_READ)
    options = StateDictOptions(full_state_dict=True, strict=True)
    set_model_state_dict(model, weights, options=options)


def _format_of(path: Path) -> str:
    found = SUFFIXES.get(path.suffix)
    if found is None:
        raise InvalidInput(
            f"{path.name}: given a name that says no format; allowed: one that ends with {', '.join(SUFFIXES)}"
        )
    return found


def _apart(name: str) -> tuple[str, bool, str]:
    """Where a file lies, whether that is a URI, and its name there."""
    place, _, key = name.rpartition("/")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/(?!/)", name) or place.endswith(":/"):
        raise InvalidInput(
            f"{name}: allowed: a path, or a URI as a string, with a name in it: s3://bucket/model.pt"
        )
    return place, "://" in name, key


def _local(source: str, folder: Path) -> Path:
    if "://" not in source:
        if not Path(source).is_file():
            raise InvalidInput(f"{source}: there is no such file")
        return Path(source)
    place, _, name = _apart(source)
    open_store(place).download(name, folder / name)
    return folder / name


def _write_torch(weights: dict[str, Any], path: Path, about: dict[str, str]) -> None:
    with path.open("wb") as file:  # given the path, torch wants something before the last dot of its name
        torch.save(weights, file)


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
    return weights


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise InvalidInput(
            "a .safetensors file needs a package that is not installed here: pip install "
            "'airflow-elastic[safetensors]', or use a .pt file"
        ) from None
    return safetensors.torch


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


def _read_safetensors(path: Path) -> dict[str, Any]:
    library = _safetensors()
    try:
        weights: dict[str, Any] = library.load_file(path)
    except OSError:
        raise
    except Exception as error:
        raise InvalidInput(f"{path} is no safetensors file: {error}") from error
    return weights


def main() -> int:
    """Export, as the words of the command line say; what is wrong is said in a sentence."""
    run, path, *step = sys.argv[1:]
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    reading = progress.add_task("reading", total=None)

    def told(done: int, whole: int) -> None:
        progress.update(reading, completed=done, total=whole)
        if done == whole:
            progress.update(reading, description=f"writing {Path(path).name}")

    try:
        with progress:
            manifest = export_weights(run, path, int(step[0]) if step else None, told)
    except ElasticError as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, InvalidInput) else 1
    except OSError as error:
        sys.stderr.write(f"{path} cannot be written: {error.strerror or error}\n")
        return 1
    sys.stdout.write(f"the model of checkpoint {manifest.step} is in {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
