"""Parses a manifest: known fields are taken out of it, and any field that is left over is an error."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from airflow_elastic.engines.kube.render.job_fields import REFUSED
from airflow_elastic.spec.errors import Problem, SpecError

_LOST = "nothing: a run has no word for this field, so it would be lost"


def name_of(found: Mapping[str, Any]) -> str | None:
    """The name of an object of any form; None if it has none."""
    metadata = found.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return name if isinstance(name, str) else None


class Section:
    """A section of a manifest (a mapping). Known fields are taken out of it. Its values have been checked (`tables`).

    Args:
        data: its content.
        path: its path in the manifest.
        problems: collects the parts that cannot be kept; None for the outermost part, which raises them.
    """

    def __init__(
        self, data: Mapping[str, Any], path: str = "", problems: list[Problem] | None = None
    ) -> None:
        self.path, self.problems = path, [] if problems is None else problems
        self._top = problems is None
        self._parts: list[Section] = []
        self.data: dict[str, Any] = copy.deepcopy(dict(data))

    def at(self, key: str | int) -> str:
        """The path of one of its fields."""
        return f"{self.path}.{key}".strip(".")

    def take(self, key: str, default: Any = None) -> Any:
        """Take a field out, and return it."""
        value = self.data.pop(key, None)
        return default if value is None else value

    def drop(self, *keys: str) -> None:
        """Remove fields that do not matter for the run."""
        for key in keys:
            self.data.pop(key, None)

    def part(self, key: str) -> Section:
        """A field that is a mapping itself; empty if there is none."""
        return self.of(self.take(key, {}), key)

    def of(self, data: Mapping[str, Any], key: str | int) -> Section:
        """A part of something that was taken out."""
        made = Section(data, self.at(key), self.problems)
        self._parts.append(made)
        return made

    def rest(self) -> dict[str, Any]:
        """All fields that have not been taken out."""
        rest, self.data = self.data, {}
        return rest

    def refuse(self, key: str, given: object, allowed: str) -> None:
        """Note a part that cannot be kept."""
        self.problems.append(Problem(self.at(key), given, allowed))

    def only(self, key: str, *allowed: Any, why: str) -> None:
        """Take out a field that must be absent, or have one of these values."""
        value = self.take(key)
        if value is not None and value not in allowed:
            self.refuse(key, value, why)

    def end(self) -> None:
        """Refuse the fields that are left. The outermost part raises all problems."""
        for part in self._parts:
            part.end()
        for key, value in self.rest().items():
            self.refuse(key, value, REFUSED.get(key, _LOST))
        if self._top and self.problems:
            raise SpecError(*self.problems)
