"""Plugins by name: engines and launchers that are installed with an entry point, or given as `module:attribute`."""

from __future__ import annotations

import difflib
import importlib.util
import re
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires, version
from typing import Any

from airflow_elastic.spec.errors import Problem, SpecError

#: The extra of this package that installs a module.
_EXTRAS = {
    "accelerate": "accelerate",
    "airflow": "airflow",
    "aiohttp": "kubernetes",
    "boto3": "s3",
    "fastapi": "ui",
    "kubernetes_asyncio": "kubernetes",
    "numpy": "runtime",
    "safetensors": "safetensors",
    "sqlalchemy": "brain",
    "starlette": "ui",
    "tensorboard": "tensorboard",
    "torch": "runtime",
    "uvicorn": "ui",
}

#: The package of a module, if it has another name.
_PACKAGES = {"airflow": "apache-airflow"}


class PackageMissing(SpecError):
    """A plugin is installed, but not a package that it needs.

    Attributes:
        module: the module that could not be imported.
    """

    def __init__(self, problem: Problem, module: str) -> None:
        super().__init__(problem)
        self.module = module


def names(group: str) -> list[str]:
    """The names of everything that is installed in an entry point group, sorted."""
    return sorted(point.name for point in entry_points(group=group))


@cache
def _points(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))  # 25 ms each time, in an environment with Airflow


def _find(group: str, name: str) -> EntryPoint | None:
    """The plugin with this name, even if it has just been installed."""
    for _ in range(2):
        for point in _points(group):
            if point.name == name:
                return point
        if ":" in name:
            return None
        _points.cache_clear()
    return None


def unknown(group: str, name: str, field: str) -> Problem | None:
    """The problem with a name that no plugin has; None if `load` may find something. Imports nothing.

    Args:
        group: the entry point group.
        name: an installed name, or `package.module:attribute`.
        field: where the name was given.
    """
    if ":" in name or _find(group, name) is not None:
        return None
    known = names(group)
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    return Problem(field, name, f"one of {', '.join(known)}, or module:attribute{meant}")


def load(group: str, name: str, field: str) -> Any:
    """The object behind a name.

    Args:
        group: the entry point group.
        name: an installed name, or `package.module:attribute` if it is not installed as a plugin.
        field: where the name was given, for the error.

    Raises:
        SpecError: there is no such plugin; the text lists those that there are.
    """
    if (point := _find(group, name)) is not None:
        try:
            return point.load()
        except ModuleNotFoundError as error:
            module = error.name or str(error)
            allowed = (
                f"a name whose packages are installed: this one needs {module} ({how_to_install(module)})"
            )
            raise PackageMissing(Problem(field, name, allowed), module) from error
    if (problem := unknown(group, name, field)) is not None:
        raise SpecError(problem)
    try:
        return EntryPoint(name, name, group).load()
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(
            Problem(field, name, f"something that can be imported, as module:attribute ({error})")
        ) from error


def how_to_install(module: str) -> str:
    """The command that installs a module, ready to type: by an extra of this package if one has it."""
    package = module.partition(".")[0]
    extra = _EXTRAS.get(package)
    return f"pip install 'airflow-elastic[{extra}]'" if extra else f"pip install {package}"


def lacking(module: str) -> str | None:
    """Why a module cannot be used here, in a few words: it is missing or too old. None if it can be used.

    Imports nothing, because torch alone takes seconds. A mere folder of that name does not count.
    """
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        return "not installed"
    package = _PACKAGES.get(module, module)
    try:
        there, asked = version(package), requires("airflow-elastic") or ()
    except PackageNotFoundError:
        return None
    named = rf"{re.sub('[-_]', '[-_]', package)}>=([\d.]+)"
    least = min((match[1] for one in asked if (match := re.match(named, one))), key=_numbers, default="0")
    return f"{there} is too old: {least} or newer is needed" if _numbers(there) < _numbers(least) else None


def _numbers(version: str) -> list[int]:
    match = re.match(r"\d+(\.\d+)*", version)
    return [int(one) for one in match[0].split(".")] if match else []
