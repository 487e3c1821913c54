"""What makes two specifications the same run: what they train, and not the folder or the text of the code.

A new version of a DAG bundle, or a new release, has the same code in another folder. A run that began in one folder
goes on in the other. A corrected script goes on with the run, whether it is a file or part of the specification.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: What an identity has in place of each of these folders.
_FOLDERS = {"source_root": "{source_root}", "working_dir": "{working_dir}"}


def without_code_paths(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A specification's plain values without its script and the folders that hold its code.

    Paths below `source_root`, or else below `working_dir`, become relative to it. This holds everywhere: for the
    command, variables and options.

    Args:
        plain: what `RunSpec.to_dict` gives.
    """
    left = {name: value for name, value in plain.items() if name != "script"}
    root, folder = left.pop("source_root", None), left.pop("working_dir", None)
    below = _told_from(_FOLDERS["source_root"], root, folder)
    if below != folder:
        left["working_dir"] = below
    for name, path in (("source_root", root), ("working_dir", folder)):
        left = _told_from(_FOLDERS[name], path, left)
    return left


def _told_from(name: str, folder: str | None, value: Any) -> Any:
    """The same value, with `name` in place of the folder wherever a path begins with it."""
    if not folder or not folder.strip("/"):
        return value
    if isinstance(value, str):
        # A path may be a word by itself, come after `--option=`, or be one of several in a variable.
        path = rf"(?<![\w./-]){re.escape(folder.rstrip('/'))}(?=/|$|[:;,\s\"'])"
        return re.sub(path, name, value)
    if isinstance(value, Mapping):
        return {key: _told_from(name, folder, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_told_from(name, folder, item) for item in value]
    return value
