"""Taking a manifest apart: what is understood is taken out of it, and what is left over is an error."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from airflow_elastic.engines.kube.render.owners import REFUSED
from airflow_elastic.spec.errors import Problem, SpecError

_LOST = "nothing: a run has no word for this field, so it would be lost"


def name_of(found: Mapping[str, Any]) -> str | None:
    """The name of an object, whatever shape it has; None where it has none."""
    metadata = found.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return name if isinstance(name, str) else None


class Part:
    """A part of a manifest, out of which what is understood is taken. Its values have been checked (`tables`).

    Args:
        data: what it holds.
        path: where in the manifest it stands.
        problems: to which what cannot be kept is added; None for the outermost part, which raises it.
    """

    def __init__(
        self, data: Mapping[str, Any], path: str = "", problems: list[Problem] | None = None
    ) -> None:
        self.path, self.problems = path, [] if problems is None else problems
        self._top = problems is None
        self._parts: list[Part] = []
        self.data: dict[str, Any] = copy.deepcopy(dict(data))

    def at(self, key: str | int) -> str:
        """The path of one of its fields."""
        return f"{self.path}.{key}".strip(".")

    def take(self, key: str, default: Any = None) -> Any:
        """A field, which is then taken."""
        value = self.data.pop(key, None)
        return default if value is None else value

    def drop(self, *keys: str) -> None:
        """Fields that say nothing about what is to run."""
        for key in keys:
            self.data.pop(key, None)

    def part(self, key: str) -> Part:
        """A field that is a mapping itself; empty where there is none."""
        return self.of(self.take(key, {}), key)

    def of(self, data: Mapping[str, Any], key: str | int) -> Part:
        """Something that was taken, to be taken apart further."""
        made = Part(data, self.at(key), self.problems)
        self._parts.append(made)
        return made

    def rest(self) -> dict[str, Any]:
        """All that has not been taken."""
        rest, self.data = self.data, {}
        return rest

    def refuse(self, key: str, given: object, allowed: str) -> None:
        """Note what cannot be kept."""
        self.problems.append(Problem(self.at(key), given, allowed))

    def only(self, key: str, *allowed: Any, why: str) -> None:
        """Take a field that must be absent, or one of these."""
        value = self.take(key)
        if value is not None and value not in allowed:
            self.refuse(key, value, why)

    def end(self) -> None:
        """Refuse what is left. The outermost raises it, with all else."""
        for part in self._parts:
            part.end()
        for key, value in self.rest().items():
            self.refuse(key, value, REFUSED.get(key, _LOST))
        if self._top and self.problems:
            raise SpecError(*self.problems)
