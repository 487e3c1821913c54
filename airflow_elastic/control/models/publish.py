"""Copy a file of weights into a model URI, and read it back."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.spec.errors import StoreError
from airflow_elastic.spec.models import Weights, layout

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

_CHUNK = 8 << 20

#: The suffixes of files, by format.
SUFFIXES = {"safetensors": ".safetensors", "pt": ".pt"}


def publish(store: Store, path: Path, kind: str) -> Weights:
    """Upload a file of weights, unless it is there already, and compare what is stored with it.

    The key is the content's sha256: a promoter that was killed leaves a file that harms nobody, and that the next one
    uses.

    Args:
        store: of the model URI.
        path: of the file.
        kind: its format, one of `SUFFIXES`.

    Raises:
        StoreError: what is stored differs from the file.
    """
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    weights = Weights(layout.weights(sha256, SUFFIXES[kind]), kind, path.stat().st_size, sha256)
    if problem(store, weights) is not None:
        store.upload(weights.key, path)
        if (why := problem(store, weights)) is not None:
            raise StoreError(
                f"{why} after its upload: nothing was promoted; try again, and check the storage"
            )
    return weights


def problem(store: Store, weights: Weights) -> str | None:
    """What is wrong with stored weights, byte by byte. None if they are as their record says."""
    digest, size = hashlib.sha256(), 0
    while chunk := store.read_from(weights.key, size, _CHUNK):
        size += len(chunk)
        digest.update(chunk)
    where = f"{store.uri}/{weights.key}"
    if size == 0:
        return f"{where} does not exist"
    if (size, digest.hexdigest()) != (weights.size, weights.sha256):
        return f"{where} has {size} bytes and another sha256 than was promoted: its bytes have changed"
    return None
