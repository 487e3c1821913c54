"""Export a checkpoint's weights into a file, in a process of its own: only that one needs torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from airflow_elastic.adapters.plugins import how_to_install
from airflow_elastic.launchers.api import BY_NAME
from airflow_elastic.spec.errors import ElasticError, InvalidInput

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

_MODULE = "airflow_elastic.runtime.checkpoint.restore.weights"
_BAD_INPUT = 2


class Exporter(Protocol):
    """Writes the weights of a checkpoint into a file, whose suffix says the format."""

    def __call__(self, run: Store, step: int, path: Path) -> None: ...


@dataclass(frozen=True, slots=True)
class TorchExporter:
    """Exports with torch.

    Attributes:
        python: an interpreter with torch and this package. Default: the one at work.
        environment: further variables, such as credentials for the storage.
    """

    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, run: Store, step: int, path: Path) -> None:
        """Write the weights of a run's checkpoint. Every byte of it is checked.

        Raises:
            InvalidInput: there is no torch, or the format cannot hold the model.
            ElasticError: the checkpoint cannot be read, or there is no room for the file.
        """
        command = [self.python, *BY_NAME, _MODULE, run.uri, str(path), str(step)]
        try:
            done = subprocess.run(
                command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise InvalidInput(f"python: given {self.python!r}, which cannot be started: {error}") from error
        if done.returncode == 0:
            return
        last = done.stderr.strip().rpartition("\n")[2].removeprefix("airflow-elastic: ")
        for module in ("torch", "safetensors", "airflow_elastic"):
            if f"No module named '{module}" in last:
                install = how_to_install("safetensors" if module == "safetensors" else "torch")
                raise InvalidInput(
                    f"{self.python} has no {module}, which exports the weights: {install} there, or name another "
                    "interpreter (python)"
                )
        kind = InvalidInput if done.returncode == _BAD_INPUT else ElasticError
        raise kind(last or f"the export of checkpoint {step} of {run.uri} ended with code {done.returncode}")
