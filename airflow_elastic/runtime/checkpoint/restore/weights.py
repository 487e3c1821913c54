"""Export and load weights in common formats: a plain state dict as from `torch.save`, and safetensors.

`airflow-elastic checkpoint export` runs this module with the arguments RUN_URI FILE [STEP].
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.nn.parallel import DistributedDataParallel

from airflow_elastic.adapters.host.scratch_folders import scratch
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.storage.durable_files import remove_abandoned, temp_file
from airflow_elastic.adapters.storage.folder_errors import blocking_file
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.runtime.checkpoint.format.compatibility import (
    TO_READ,
    check_fit,
    kind_of,
    with_room_for_extra,
)
from airflow_elastic.runtime.checkpoint.format.tensor_split import packed
from airflow_elastic.runtime.checkpoint.format.weight_files import format_of, read, write
from airflow_elastic.runtime.checkpoint.read.load import ProgressCallback, no_progress
from airflow_elastic.runtime.checkpoint.restore.load_model import read_weights
from airflow_elastic.runtime.checkpoint.tensors.overlap import each_apart
from airflow_elastic.runtime.checkpoint.tensors.parameter_names import named_as, set_weights, weights_of
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.errors import ElasticError, InvalidInput, StoreError, StoreUnfit

_SCRATCH = "elastic-weights-"


def export_weights(
    run: str | Store, path: str | Path, step: int | None = None, told: ProgressCallback = no_progress
) -> Manifest:
    """Write the model of a run's checkpoint into one file, whatever number of ranks has saved it.

    Args:
        run: the run URI, or a store for it.
        path: of the file, or an s3:// URI. It is created or replaced atomically, and leftovers of exports that were
            killed are removed. `.pt`, `.pth` and `.bin` are state dicts as from `torch.save`, for
            `torch.load(path, weights_only=True)`; `.safetensors` has step and run in its metadata.
        step: of the checkpoint. Default: the newest one that is whole.
        told: called with the bytes that are read so far, and all bytes. Default: no progress is reported.

    Returns:
        The manifest of the checkpoint.

    Raises:
        InvalidInput: the suffix is not known, or the format cannot hold the model.
        RunMissing, CheckpointDamaged: as for `load_model`.
        OSError, StoreError: the file cannot be written.
    """
    name = str(path)
    kind = format_of(name.rpartition("/")[2])
    place, scheme, key = _apart(name)
    shelf = open_store(place) if scheme else None
    manifest, weights = read_weights(run, step, told)
    about = {"step": str(manifest.step), "run": run if isinstance(run, str) else run.uri}
    if shelf is not None:
        with scratch(_SCRATCH) as folder:
            write(folder / key, weights, about, kind)
            _remove_left(shelf, key)
            shelf.upload(key, folder / key)
        return manifest
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.absolute().parent)
    with temp_file(path.absolute().parent) as (temporary, created):
        mode = stat.S_IMODE((path.stat() if path.exists() else os.fstat(created.fileno())).st_mode)
        write(temporary, weights, about, kind)
        temporary.chmod(mode)  # safetensors makes a file that only its owner can read
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    return manifest


def _remove_left(shelf: Store, key: str) -> None:
    """Remove unfinished files of killed exports to the same place."""
    local = shelf.local_path(key)
    if local is not None:
        remove_abandoned(local.parent)
        return
    with contextlib.suppress(StoreError):  # credentials may allow writes, but not to list or abort uploads
        shelf.abandon(key, key.__eq__)


def load_weights(source: str | Path, model: torch.nn.Module) -> None:
    """Load weights from another training. Call this before `run.restore`: a checkpoint of the run replaces them.

    No code in the file is run: from a file of `torch.save` only tensors are read.

    Args:
        source: a path, or an s3:// URI. `.pt`, `.pth` and `.bin` are a state dict, `.safetensors` is safetensors.
            `.index.json` lists several of these files beside it, as Hugging Face's libraries write large models.
        model: wrapped (DDP, FSDP2) or not. It must have exactly the parameters and buffers of the file, of the same
            dtypes. For another dtype, convert it after that and before it is wrapped. Of tied weights, one name in the
            file is enough. Names in the file may have the prefixes of DDP and torch.compile.

    Raises:
        InvalidInput: there is no such file, or it has another format, model or dtype. The model is unchanged.
    """
    load_file(str(source), model)


def load_file(name: str, model: torch.nn.Module, sha256: str | None = None) -> None:
    """The same, for a file whose bytes are known.

    Args:
        name: a path or a URI.
        model: as for `load_weights`.
        sha256: of the file, hex digits; None: it is not known.

    Raises:
        CheckpointDamaged: the file has other bytes.
        InvalidInput: as `load_weights`.
    """
    with _beside(name) as local:

        def checked(key: str) -> Path:
            path = local(key)
            with path.open("rb") as file:
                if sha256 is not None and hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    raise CheckpointDamaged(f"{name} is damaged: it has another sha256 than was recorded")
            return path

        weights = read(name.rpartition("/")[2], checked)
    own = weights_of(model)
    weights = named_as(weights, model, own)
    kinds = {f"model.{key}": kind_of(value) for key, value in weights.items()}
    state = with_room_for_extra(packed(own), kinds)
    check_fit({"model": state}, kinds, name, TO_READ)
    if isinstance(model, DistributedDataParallel):
        set_weights(model, weights)  # unlike torch's function, this takes a DDP with tensors of its own
    else:
        # Each rank takes its part of the whole tensors.
        options = StateDictOptions(full_state_dict=True, strict=True)
        with each_apart(model):
            set_model_state_dict(model, weights, options=options)


def _apart(name: str) -> tuple[str, bool, str]:
    """The folder of a file, whether that is a URI, and the file's name."""
    place, _, key = name.rpartition("/")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/(?!/)", name) or place.endswith(":/"):
        raise InvalidInput(
            f"{name}: allowed: a path or a URI (as a string) with the name of a file, e.g. s3://bucket/model.pt"
        )
    return place, "://" in name, key


@contextlib.contextmanager
def _beside(name: str) -> Iterator[Callable[[str], Path]]:
    """A function that returns local paths of files in the same folder, by name.

    Files of a bucket are downloaded. Only the last one is kept.
    """
    place, is_uri, _ = _apart(name)
    if not is_uri:
        yield partial(_there, Path(name).parent)
        return
    store = open_store(place)
    with scratch(_SCRATCH) as folder:

        def fetched(key: str) -> Path:
            for former in folder.iterdir():
                former.unlink()
            store.download(key, folder / key)
            return folder / key

        yield fetched


def _there(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise InvalidInput(f"{folder / name}: there is no such file")
    return folder / name


def _fail(text: str, code: int) -> int:
    sys.stderr.write(f"airflow-elastic: {text}\n")
    return code


def main() -> int:
    """Export, with the arguments of the command line. Errors are printed as one line."""
    run, path, *step = sys.argv[1:]
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    reading = progress.add_task("reading", total=None)

    def told(done: int, whole: int) -> None:
        progress.start()
        progress.update(reading, completed=done, total=whole)
        if done == whole:
            progress.update(reading, description=f"writing {Path(path).name}")

    try:
        manifest = export_weights(run, path, int(step[0]) if step else None, told)
    except ElasticError as error:
        return _fail(str(error), 2 if isinstance(error, InvalidInput | StoreUnfit) else 1)
    except OSError as error:
        no_folder = isinstance(error, FileExistsError | NotADirectoryError)
        why = f"{blocking_file(str(error.filename))} is no folder" if no_folder else error.strerror or error
        return _fail(f"{path} cannot be written: {why}", 1)
    finally:
        progress.stop()
    sys.stdout.write(f"the model of checkpoint {manifest.step} is in {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
