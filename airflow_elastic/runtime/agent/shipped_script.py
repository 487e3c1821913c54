"""A script that is part of the run's specification: each worker writes it to a file before its ranks start."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host.small_files import write_whole
from airflow_elastic.spec.errors import InvalidInput

if TYPE_CHECKING:
    from airflow_elastic.runtime.agent.worker import Worker
    from airflow_elastic.spec.run import RunSpec


def with_script(node: Worker) -> RunSpec:
    """The specification, whose command names the file that has the script. Without a script it stays as it is.

    Raises:
        InvalidInput: the folder for the file belongs to somebody else.
    """
    spec = node.record.spec
    if spec.script is None:
        return spec
    file, *arguments = spec.command
    path = _folder(node.files.scripts) / file
    _write(path, spec.script.encode())
    return replace(spec, command=(str(path), *arguments), script=None)


def _folder(path: Path) -> Path:
    """Make the folder. Only this user may write there: it may be in the machine's folder for temporary files."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise InvalidInput(
            f"{path}: it is no folder of this user alone: remove it, the script is written there"
        )
    return path


def _write(path: Path, script: bytes) -> None:
    """Write the file at once: workers of one machine share it."""
    if path.is_file() and path.read_bytes() == script:
        return
    write_whole(path, script)
