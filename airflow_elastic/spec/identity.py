"""What makes two specifications the same run: what they train, and not in which folder the code is found.

A new version of a DAG bundle, or a new release, is another folder with the same code. A run that began in the one goes
on in the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_elastic.spec.run import RunSpec

#: What stands in an identity for each of these folders.
_FOLDERS = {"source_root": "{source_root}", "working_dir": "{working_dir}"}


def placeless(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A specification's plain values without the folders that hold its code.

    Paths below `source_root`, and else below `working_dir`, are told from there, wherever they stand: in the command,
    in variables, in options.

    Args:
        plain: what `RunSpec.to_dict` gives.
    """
    left = dict(plain)
    root, folder = left.pop("source_root", None), left.pop("working_dir", None)
    below = _told_from(_FOLDERS["source_root"], root, folder)
    if below != folder:
        left["working_dir"] = below
    for name, path in (("source_root", root), ("working_dir", folder)):
        left = _told_from(_FOLDERS[name], path, left)
    return left


def _told_from(name: str, folder: str | None, value: Any) -> Any:
    """The same value, with `name` wherever a path in it begins with the folder."""
    if not folder or not folder.strip("/"):
        return value
    if isinstance(value, str):
        # A path may be a word of its own, stand behind `--option=`, or be one of several in a variable.
        path = rf"(?<![\w./-]){re.escape(folder.rstrip('/'))}(?=/|$|[:;,\s\"'])"
        return re.sub(path, name, value)
    if isinstance(value, Mapping):
        return {key: _told_from(name, folder, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_told_from(name, folder, item) for item in value]
    return value


def is_same(old: RunSpec, new: RunSpec) -> bool:
    """Whether they are the same run, perhaps in another folder."""
    return old == new or placeless(old.to_dict()) == placeless(new.to_dict())


def differences(old: RunSpec, new: RunSpec) -> list[str]:
    """The fields in which two runs differ, one line each: `workers.count: 2 there, 4 asked for`."""
    return _differences("", placeless(old.to_dict()), placeless(new.to_dict()))


def workers_apart(old: RunSpec, new: RunSpec) -> int | None:
    """The new number of workers, where that is all in which two runs differ, and the old one allows it."""
    count = new.workers.count
    if is_same(old, new) or not old.workers.permits(count):
        return None
    return count if is_same(replace(old, workers=replace(old.workers, count=count)), new) else None


def _differences(path: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = sorted({*old, *new})
        return [line for key in keys for line in _differences(f"{path}{key}.", old.get(key), new.get(key))]
    there = "not set there" if old is None else f"{old!r} there"
    asked = "left out now" if new is None else f"{new!r} asked for"
    return [] if old == new else [f"{path.rstrip('.')}: {there}, {asked}"]
