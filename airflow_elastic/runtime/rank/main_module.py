"""Runs a script in this process as `python` itself would: as the `__main__` that there is, and no copy of it."""

from __future__ import annotations

import importlib.machinery
import io
import os
import runpy
import sys
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host.search_path import before_own

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from types import CodeType

#: What `__main__` holds when a script begins.
_GIVEN = frozenset(
    f"__{name}__" for name in ("name", "doc", "package", "loader", "spec", "annotations", "builtins")
)

#: Modules of these are found before any file.
_ALWAYS_FIRST = (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter)

#: What Python runs by the `__main__.py` inside, beside folders.
_ARCHIVES = (".zip", ".pyz")


def is_python(word: str) -> bool:
    """Whether the first word of a command is for Python to run, and no program."""
    return word == "-m" or word.endswith((".py", *_ARCHIVES)) or os.path.isdir(word)


def run(command: Sequence[str], loaded: Collection[str], path: Sequence[str]) -> None:
    """Run it to its end. Whatever ends it is raised.

    Args:
        command: a script and its arguments, or `-m`, a module and its arguments.
        loaded: the modules that an interpreter has imported when it begins with a script.
        path: `sys.path` without what Python puts before it for a script.
    """
    script, safe = command[0], sys.flags.safe_path
    here = os.path.abspath(script)
    packed = script != "-m" and not script.endswith(".py")
    if script == "-m":
        first = [] if safe else [os.getcwd()]
        argv = ["-m", *command[2:]]
    else:
        first = [here] if packed else [] if safe else [os.path.dirname(os.path.realpath(script))]
        argv = [*command]
    sys.argv, sys.orig_argv = argv, [sys.executable, "-u", *command]
    sys.path[:] = [*first, *path]
    _forget(loaded)
    main = vars(sys.modules["__main__"])
    for name in main.keys() - _GIVEN:
        del main[name]
    main.update(__doc__=None, __loader__=importlib.machinery.BuiltinImporter)
    if script == "-m" or packed:
        name = command[1] if script == "-m" else "__main__"
        runpy._run_module_as_main(name, alter_argv=not packed)  # type: ignore[attr-defined]  # as Python itself does
        return
    main.update(
        __file__=here, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", here)
    )
    exec(_compiled(here), main)  # noqa: S102 - what we are for


def _compiled(path: str) -> CodeType:
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _forget(loaded: Collection[str]) -> None:
    """Forget what we have imported of modules that the script has others of: the `calendar.py` of its own folder.

    Whoever has imported the former ones keeps them; what the script imports it finds where Python would have.
    """
    early = before_own(sys.path)
    ours = {name.partition(".")[0] for name in sys.modules} - {"__main__", "airflow_elastic", *loaded}
    for name in ours if early else ():
        found = importlib.machinery.PathFinder.find_spec(name, early)
        if found is None or found.loader is None or _is_from(sys.modules.get(name), found.origin):
            continue
        if not any(kind.find_spec(name) for kind in _ALWAYS_FIRST):
            for other in [other for other in sys.modules if other.partition(".")[0] == name]:
                del sys.modules[other]


def _is_from(module: object, origin: str | None) -> bool:
    known = getattr(getattr(module, "__spec__", None), "origin", None)
    return known == origin or bool(known and origin and os.path.realpath(known) == os.path.realpath(origin))
