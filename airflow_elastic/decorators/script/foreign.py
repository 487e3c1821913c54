"""What workers do not have, or would have with another value: why a part of a DAG file cannot go to them."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.metadata
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

#: Parts of this package that need Airflow.
_OURS = ("decorators", "hooks", "operators", "sensors", "triggers")

_ELSEWHERE = (
    "each worker would get another value: use it inside the function, or pass the value as an argument"
)

#: What a statement outside of functions must not use, by its whole name.
_OTHER_VALUES = {
    "os.environ": "the environment of workers is another one",
    "os.getenv": "the environment of workers is another one",
    **dict.fromkeys(("os.getcwd", "pathlib.Path.cwd", "pathlib.Path.home"), "workers have another folder"),
    "os.listdir": "workers have other files",
    "glob.glob": "workers have other files",
    "builtins.open": "workers have other files",
    "builtins.input": "nobody can answer there",
    "builtins.globals": "workers have other names",
    "socket.gethostname": "workers are other machines",
    **dict.fromkeys(
        ("time.time", "time.time_ns", "time.monotonic", "time.perf_counter"), "it is another time there"
    ),
    **dict.fromkeys(
        (f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")), "it is another time"
    ),
    "datetime.date.today": "it may be another day there",
    **dict.fromkeys(("uuid.uuid1", "uuid.uuid4", "os.urandom"), "it is drawn again there"),
}
_DRAWN = ("random.", "numpy.random.", "secrets.")
_OUTSIDE = ("requests.", "httpx.", "urllib.request.", "subprocess.", "boto3.")


def module_problem(module: str, level: int, file: str | None) -> str | None:
    """Why workers cannot import a module, in words; None if they can, once it is installed there.

    Args:
        module: its name; for `from a import b` it is `a.b`.
        level: the dots before it in a relative import.
        file: the path of the DAG file; None if workers have modules from beside it.
    """
    if level:
        return (
            "a relative import is from a folder that workers do not have: move what it needs into this file"
        )
    top, _, rest = module.partition(".")
    if top == "airflow" or (top == "airflow_elastic" and rest.partition(".")[0] in _OURS):
        return f"it is from {module}, and workers have no Airflow: pass the value as an argument of the task"
    known = top == "airflow_elastic" or top in sys.stdlib_module_names
    if file is not None and not known and (path := _beside(top, file)):
        return (
            f"it is from {module}, and workers have no {path}. Move what you need into this file, or install it there "
            "as a package. If a folder of the workers has it, give that folder in `env`, as PYTHONPATH"
        )
    return None


def value_problem(node: ast.stmt, modules: Mapping[str, str]) -> tuple[str, str] | None:
    """What would give a statement outside of functions another value on workers; None if nothing is known.

    Args:
        node: the statement.
        modules: what imported names stand for, e.g. `{"np": "numpy", "environ": "os.environ"}`.

    Returns:
        The name, and why it would, in words.
    """
    for one in _evaluated(node):
        name = _whole_name(one, modules)
        why = None if name is None else _other_value(name)
        if name is not None and why is not None:
            return name.removeprefix("builtins."), f"{why}; {_ELSEWHERE}"
    return None


def _other_value(name: str) -> str | None:
    if name.startswith(_DRAWN):
        return "it is drawn again there"
    if name.startswith(_OUTSIDE):
        return "it reaches other programs"
    return _OTHER_VALUES.get(name)


def _evaluated(node: ast.AST) -> Iterator[ast.expr]:
    """The names and attributes that Python looks up when it runs a statement, the longest first."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return
    if isinstance(node, ast.Attribute | ast.Name):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _evaluated(child)


def _whole_name(node: ast.expr, modules: Mapping[str, str]) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    first = modules.get(node.id) or f"builtins.{node.id}"
    return ".".join([first, *reversed(parts)])


def _beside(top: str, file: str) -> str | None:
    """The path of a module in the folders from which Airflow reads DAGs; None for one that is installed."""
    folder = os.path.dirname(os.path.abspath(file))
    above = [path for path in sys.path if path and Path(folder).is_relative_to(os.path.abspath(path))]
    homes = [path for path in sys.path if path and path in _airflow_folders()]
    found = importlib.machinery.PathFinder.find_spec(top, [folder, *above, *homes])
    if found is None or top in _installed():
        return None
    places = [found.origin] if found.origin else list(found.submodule_search_locations or ())
    return str(places[0]) if places else folder


@cache
def _airflow_folders() -> frozenset[str]:
    from airflow.configuration import conf

    home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()
    plugins = conf.get("core", "plugins_folder", fallback=str(home / "plugins"))
    return frozenset({plugins, str(home / "config")})


@cache
def _installed() -> frozenset[str]:
    """The modules of installed packages, also of those that are installed from a folder of sources."""
    return frozenset(importlib.metadata.packages_distributions())
