"""The path of imports of our own processes: Python's own modules come first, despite PYTHONPATH.

A project's folder on that path may have a `secrets.py`, a `calendar.py` or an `html/` that its script never imports.
Our host, agents and ranks import more than the script does. This module is imported before anything else, and imports
only what an interpreter has imported at its start.
"""

import os
import sys


def own_first() -> list[str]:
    """Put Python's own modules before all others; returns the former path."""
    before = sys.path[:]
    first = [folder for folder in before if folder in _own()]
    sys.path[:] = [*first, *(folder for folder in before if folder not in first)]
    return before


def before_own(path: list[str]) -> list[str]:
    """Those entries of a path that come before Python's own modules."""
    own = _own()
    return path[: next((i for i, folder in enumerate(path) if folder in own), 0)]


def _own() -> set[str]:
    library = os.path.dirname(os.__file__)
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    return {library, f"{library}/lib-dynload", f"{os.path.dirname(library)}/{archive}"}
