"""Runs a script in this process as `python` itself would: in the existing `__main__` module, not in a copy."""

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

#: The names in `__main__` when a script begins.
_GIVEN = frozenset(
    f"__{name}__" for name in ("name", "doc", "package", "loader", "spec", "annotations", "builtins")
)

#: Modules of these are found before any file.
_ALWAYS_FIRST = (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter)

#: Python runs these, and folders, by the `__main__.py` inside.
_ARCHIVES = (".zip", ".pyz")


def is_python(word: str) -> bool:
    """Whether Python runs the first word of a command; else it is a program."""
    return word == "-m" or word.endswith((".py", *_ARCHIVES)) or os.path.isdir(word)


def run(command: Sequence[str], loaded: Collection[str], path: Sequence[str]) -> None:
    """Run a script to its end. Raises the exception that ends it.

    Args:
        command: a script and its arguments, or `-m`, a module and its arguments.
        loaded: the modules that an interpreter has imported when a script begins.
        path: `sys.path` without the entry that Python adds for a script.
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
    exec(_compiled(here), main)  # noqa: S102 - this is the purpose of the module


def _compiled(path: str) -> CodeType:
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _forget(loaded: Collection[str]) -> None:
    """Forget imported modules if the script has its own of that name, such as a `calendar.py` in its folder.

    Modules that have imported the former ones keep them. The script's imports find the modules that Python would find.
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
