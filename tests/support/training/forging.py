"""Checkpoints with whatever somebody wants to be in them, and with all their checksums."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from airflow_elastic.adapters.records.checkpoints import checksum_of
from airflow_elastic.runtime.checkpoint.format.values import to_bytes
from airflow_elastic.runtime.checkpoint.save import staging


class Hostile:
    """Whoever unpickles it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def of_release(manifest: bytes, version: int) -> bytes:
    """The same manifest, as a release with another version of it would have written it."""
    plain = json.loads(manifest)
    del plain["seal"]
    plain["version"] = version
    return json.dumps({**plain, "seal": checksum_of(plain)}).encode()


@contextlib.contextmanager
def forging(key: str, value: Any, form: str) -> Iterator[None]:
    """What is saved meanwhile has another value under this key, pickled by nobody who looks at it.

    Args:
        key: in the state.
        value: anything.
        form: `pickle`, or `archive` as torch writes it.
    """
    forged = False

    def write(name: str, real: Any) -> bytes:
        nonlocal forged
        if name != key:
            return to_bytes(name, real)
        forged = True
        if form == "pickle":
            return pickle.dumps(value)
        archive = io.BytesIO()
        torch.save([value, torch.ones(2)], archive)
        return archive.getvalue()

    with patch.object(staging, "to_bytes", write):
        yield
    assert forged, f"nothing was saved as {key}"
