"""Variables in a command: the values that Kubernetes (`$(NAME)`) and a shell (`$NAME`) would insert, if known.

Parts that only the pod knows stay in the text as a mark, which contains their own spelling. The user of the text
decides whether that does any harm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_OPEN, _CLOSE = "\ue000", "\ue001"  # Unicode's private use
_MARK = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")
_SERVICE = re.compile(r"[A-Z0-9_]+_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[A-Z0-9_]+)?)")


@dataclass(frozen=True, slots=True)
class Scope:
    """The variables of a container.

    Attributes:
        values: the values that are known before the pod exists, by name: of its `env`, and of its operator.
        unknown: names without known values: of Secrets, of fields of the pod, of its operator.
        others: whether there may be more (`envFrom`).
    """

    values: Mapping[str, str] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    others: bool = False

    def get(self, name: str) -> str | None:
        """The value; None if nothing is known to set it. Raises KeyError if only the pod knows it."""
        if name in self.unknown:
            raise KeyError(name)
        if name in self.values:
            return self.values[name]
        if self.others or _SERVICE.fullmatch(name):
            raise KeyError(name)
        return None


def mark(spelling: str) -> str:
    """A mark for something that only the pod knows, e.g. `$RANK`."""
    return f"{_OPEN}{spelling}{_CLOSE}"


def marked(text: str) -> str | None:
    """The spelling of the first part that only the pod knows; None if everything is known."""
    found = _MARK.search(text)
    return found[1] if found else None


def unmarked(text: str) -> str:
    """The text with the marked parts as they were written."""
    return _MARK.sub(lambda found: found[1], text)


def filled_by_kubernetes(text: str, scope: Scope) -> str:
    """A word of a container's command as Kubernetes starts it: `$(NAME)` filled in if NAME is set, `$$` is `$`."""
    return _filled(text, lambda name: _of_kubernetes(name, scope))


def values_of(pairs: list[tuple[str, str | None]], scope: Scope) -> tuple[dict[str, str], frozenset[str]]:
    """Variables in the order in which they are defined, each filled in with those before it.

    Args:
        pairs: names and values; None for values that are elsewhere.
        scope: the variables before them.

    Returns: the known values, and the names of the unknown ones.
    """
    values, unknown = dict(scope.values), set(scope.unknown)
    for name, value in pairs:
        so_far = Scope(values, frozenset(unknown), scope.others)
        full = None if value is None else filled_by_kubernetes(value, so_far)
        if full is None or marked(full) is not None:
            unknown.add(name)
        else:
            unknown.discard(name)
            values[name] = full
    return values, frozenset(unknown)


def for_kubernetes(text: str) -> str:
    """A text that Kubernetes must leave as it is, except for marks of its own variables."""
    if "$$" not in text and "$(" not in _MARK.sub("", text):
        return unmarked(text)
    pieces = _MARK.split(text)  # every other one was marked
    return "".join(piece if i % 2 else piece.replace("$", "$$") for i, piece in enumerate(pieces))


def _of_kubernetes(name: str, scope: Scope) -> str:
    try:
        value = scope.get(name)
    except KeyError:
        return mark(f"$({name})")
    return f"$({name})" if value is None else value


def _filled(text: str, value_of: Callable[[str], str]) -> str:
    def one(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else value_of(found[1])

    return re.sub(r"\$\$|\$\(([^)]*)\)", one, text)
