"""Callbacks as a DAG gives them, and as plain JSON: an import path and keyword arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.sdk import BaseNotifier
from airflow.sdk.definitions.callback import Callback

from airflow_elastic.core.overview.notices import Kind
from airflow_elastic.spec.errors import InvalidInput, Problem, SpecError
from airflow_elastic.triggers.json_kwargs import require_json

#: The arguments of the operator, by what they are called for.
CALLBACKS = {f"on_{kind}": kind for kind in Kind}

#: Airflow's prefix for the module of a DAG file, which only the process that has parsed it can import.
_DAG_FILE = "unusual_prefix_"

_ALLOWED = (
    "a function or a notifier class that the triggerer can import. It is installed, or in Airflow's folder of plugins. "
    "Also its path as text, AsyncCallback(it, kwargs={…}), and a list of these"
)


def plain_callbacks(name: str, value: Any) -> list[dict[str, Any]]:
    """`[{"path": …, "kwargs": {…}}]` of one argument.

    Args:
        name: of the argument, for the error.
        value: a callable, the path of one, Airflow's `AsyncCallback` or `SyncCallback`, or a list of these.

    Raises:
        SpecError: the triggerer could not import or call it.
    """
    given = value if isinstance(value, list | tuple) else [] if value is None else [value]
    found = []
    for one in given:
        kwargs: dict[str, Any] = {}
        path: Any = one
        if isinstance(one, Callback):
            path, kwargs = one.path, dict(one.kwargs)
        elif callable(one) and not isinstance(one, BaseNotifier):
            path = _path_of(name, one)
        if not isinstance(path, str) or "." not in path.strip("."):
            raise SpecError(Problem(name, one, _ALLOWED))
        if path.startswith((_DAG_FILE, "__main__.")):
            raise SpecError(Problem(name, one, f"{_ALLOWED}; not one of the DAG file"))
        try:
            require_json(kwargs)
        except InvalidInput as error:
            raise SpecError(Problem(name, one, f"kwargs of plain JSON: {error}")) from error
        found.append({"path": path, "kwargs": kwargs})
    return found


def _path_of(name: str, function: Callable[..., Any]) -> str:
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not qualname or "<" in qualname:
        raise SpecError(Problem(name, function, f"{_ALLOWED}; no lambda, and nothing within a function"))
    return f"{module}.{qualname}"


def names_of(ti: Any) -> dict[str, Any]:
    """The names of a task instance, for the context of callbacks; empty without one, as in `dag.test()`."""
    names = ("dag_id", "task_id", "run_id", "map_index", "try_number")
    return {name: getattr(ti, name, None) for name in names} if ti is not None else {}
