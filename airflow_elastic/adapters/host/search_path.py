"""Where our own processes look for modules: Python's own come first, whatever PYTHONPATH names.

A project's folder on that path may hold a `secrets.py`, a `calendar.py`, an `html/` that its script never imports; our
host, agents and ranks import more than the script does. This is imported before anything else, and imports nothing that
an interpreter has not imported when it starts.
"""

import os
import sys


def own_first() -> list[str]:
    """Have Python's own modules found before all others; returns the path as it was."""
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
