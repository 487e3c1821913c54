"""Whether two specifications are the same run, and which fields differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_elastic.spec.identity import without_code_paths

if TYPE_CHECKING:
    from airflow_elastic.spec.run import RunSpec


def is_same(old: RunSpec, new: RunSpec) -> bool:
    """Whether they are the same run, perhaps in another folder."""
    return old == new or without_code_paths(old.to_dict()) == without_code_paths(new.to_dict())


def differences(old: RunSpec, new: RunSpec) -> list[str]:
    """The fields in which two runs differ, one line each: `workers.count: 2 there, 4 asked for`."""
    return _differences("", without_code_paths(old.to_dict()), without_code_paths(new.to_dict()))


def only_workers_differ(old: RunSpec, new: RunSpec) -> int | None:
    """The new number of workers, if the runs differ in nothing else and the old one allows that number."""
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
