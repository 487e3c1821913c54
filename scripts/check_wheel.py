"""Install the wheel with each extra into a clean environment, and check that it works there.

    python scripts/check_wheel.py dist/airflow_elastic-*.whl
    python scripts/check_wheel.py --python 3.12 --python 3.13 dist/*.whl --extra none --extra s3

For each extra and each Python it checks four things. The packages fit each other. Each module of the wheel can be
imported, or lacks only a package that another extra brings. `airflow-elastic --help` starts. `airflow-elastic doctor`
finds what the extra brings, and nothing more. It prints a table with the size of each installation.
It needs uv, and an index or uv's cache. It imports nothing but the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

#: The installation without extras.
NONE = "none"

_BOTO = frozenset({"boto3", "botocore"})
_KUBERNETES = frozenset({"aiohttp", "kubernetes_asyncio"})
_AIRFLOW = _BOTO | {
    "aiohttp",
    "airflow",
    "alembic",
    "fastapi",
    "httpx",
    "jinja2",
    "sqlalchemy",
    "starlette",
    "uvicorn",
}
_TORCH = frozenset({"numpy", "safetensors", "torch"})

#: What each extra brings, of the packages that parts of airflow-elastic import.
BRINGS: dict[str, frozenset[str]] = {
    NONE: frozenset(),
    "accelerate": _TORCH | {"accelerate"},
    "airflow": _AIRFLOW | _KUBERNETES,
    "aws": _AIRFLOW,
    "brain": frozenset({"alembic", "sqlalchemy"}),
    "huggingface": _TORCH | {"accelerate", "transformers"},
    "kubernetes": _KUBERNETES,
    "lightning": _TORCH | {"lightning"},
    "runtime": _TORCH,
    "s3": _BOTO,
    "safetensors": frozenset({"safetensors"}),
    "tensorboard": frozenset({"numpy", "tensorboard"}),
    "ui": frozenset({"fastapi", "starlette", "uvicorn"}),
}

#: What a person imports, and the packages that it needs.
PUBLIC: dict[str, set[str]] = {
    "airflow_elastic.decorators": {"airflow"},
    "airflow_elastic.frameworks.accelerate": {"accelerate", "torch"},
    "airflow_elastic.frameworks.huggingface": {"torch", "transformers"},
    "airflow_elastic.frameworks.lightning": {"lightning", "torch"},
    "airflow_elastic.operators": {"airflow"},
    "airflow_elastic.runtime": {"numpy", "torch"},
    "airflow_elastic.sensors": {"airflow"},
    "airflow_elastic.spec.run": set(),
}

#: `airflow_elastic.testing` is for tests, which have these.
TESTS = frozenset({"httpx", "pytest"})

#: Prints what each module lacks: null, or the first package that is missing. Any other error ends it.
IMPORT_ALL = """
import importlib, json, pkgutil, sys
import airflow_elastic
lacks = {}
for found in pkgutil.walk_packages(airflow_elastic.__path__, "airflow_elastic.", onerror=lambda name: None):
    if found.name.endswith((".__main__", ".start_rank")):
        continue  # programs, which nobody imports
    try:
        importlib.import_module(found.name)
        lacks[found.name] = None
    except ImportError as error:
        if error.name is None or error.name.startswith("airflow_elastic"):
            raise
        lacks[found.name] = error.name.partition(".")[0]
print(json.dumps(lacks))
"""


class Wrong(Exception):
    """What is wrong with an installation."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to install."""

    wheel: Path
    #: More words for `uv pip install`.
    words: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Installed:
    """A wheel that works."""

    python: str
    packages: int
    megabytes: int


def extras_of(wheel: Path) -> list[str]:
    """The extras that the wheel says it has."""
    with zipfile.ZipFile(wheel) as archive:
        about = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(about).decode()).get_all("Provides-Extra") or []


def run(what: str, *words: str | Path, cwd: Path, codes: Sequence[int] = (0,)) -> str:
    """What a program prints; it must end with one of these codes."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    env = clean | {"PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1", "AIRFLOW_HOME": str(cwd / "airflow")}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in codes:
        said = f"{done.stdout}\n{done.stderr}".strip()[-3000:]
        raise Wrong(f"{what} ended with {done.returncode}:\n{said}")
    return done.stdout


def check(options: Options, extra: str, python: str, folder: Path) -> Installed:
    """Install the wheel with an extra into the folder, and try it.

    Args:
        options: the wheel, and how to install it.
        extra: the extra, or `NONE`.
        python: a version or the path of an interpreter.
        folder: an empty folder.
    """
    env = folder / "env"
    uv = (sys.executable, "-m", "uv")
    run("uv venv", *uv, "venv", "--quiet", "--no-project", "--python", python, env, cwd=folder)
    interpreter = env / "bin" / "python"
    wanted = f"{options.wheel}[{extra}]" if extra != NONE else str(options.wheel)
    here = ("--quiet", "--python", str(interpreter))
    run("uv pip install", *uv, "pip", "install", *here, *options.words, wanted, cwd=folder)
    run("uv pip check", *uv, "pip", "check", *here, cwd=folder)
    size = sum(file.lstat().st_size for file in env.rglob("*") if file.is_file())
    listed = run("uv pip list", *uv, "pip", "list", "--format=json", *here, cwd=folder)

    brings = BRINGS[extra]
    imported = run("importing all modules", interpreter, "-I", "-c", IMPORT_ALL, cwd=folder)
    check_imports(json.loads(imported.splitlines()[-1]), brings)
    command = env / "bin" / "airflow-elastic"
    if "Usage" not in run("--help", command, "--help", cwd=folder):
        raise Wrong("--help prints no usage")
    said = json.loads(run("doctor", command, "doctor", "--json", cwd=folder, codes=(0, 1)))
    check_doctor({line["subject"]: bool(line["ok"]) for line in said["findings"]}, brings)
    version = run(
        "python", interpreter, "-c", "import platform; print(platform.python_version())", cwd=folder
    )
    return Installed(version.strip(), len(json.loads(listed)), round(size / 1e6))


def check_imports(lacks: dict[str, str | None], brings: frozenset[str]) -> None:
    """Each module can be imported, or lacks what another extra brings."""
    others = frozenset[str]().union(*BRINGS.values()) - brings
    for module, lacking in lacks.items():
        allowed = others | TESTS if module.startswith("airflow_elastic.testing") else others
        if lacking is not None and lacking not in allowed:
            raise Wrong(f"{module} cannot be imported: it lacks {lacking}")
    for module, needs in PUBLIC.items():
        if needs <= brings and lacks[module] is not None:
            raise Wrong(f"{module} cannot be imported: it lacks {lacks[module]}")


def check_doctor(well: dict[str, bool], brings: frozenset[str]) -> None:
    """Doctor finds what the extra brings, and no more."""
    for subject in ("torch", "numpy", "airflow", "boto3", "kubernetes_asyncio"):
        if well[subject] != (subject in brings):
            raise Wrong(f"doctor says of {subject}: {'installed' if well[subject] else 'not installed'}")
    if well["engine local: interpreter"] != (brings >= {"numpy", "torch"}):
        raise Wrong("doctor is wrong about the interpreter of the engine local")


def main() -> int:
    """Try all that is asked for, print a line for each, and say whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "--extra", action="append", metavar="NAME", help=f"one extra, or {NONE}; default: each"
    )
    parser.add_argument(
        "--python", action="append", metavar="PYTHON", help="version or path; default: this one"
    )
    parser.add_argument(
        "--cached", metavar="FILE", help="ask no index: install what this file lists, from uv's cache"
    )
    given = parser.parse_args()
    words = ("--offline", "--no-deps", "--requirement", os.path.abspath(given.cached)) if given.cached else ()
    options = Options(given.wheel.resolve(), words)
    extras = [NONE, *extras_of(options.wheel)]
    if unknown := set(given.extra or ()) - set(extras) | set(extras) ^ set(BRINGS):
        parser.error(f"the wheel and this program do not agree on the extras: {', '.join(sorted(unknown))}")
    failed = 0
    print(f"{'extra':12} {'python':8} {'packages':>8} {'MB':>6} {'s':>4}")
    for python in given.python or [sys.executable]:
        for extra in given.extra or extras:
            begun = time.monotonic()
            try:
                with tempfile.TemporaryDirectory(prefix="airflow-elastic-") as folder:
                    ready = check(options, extra, python, Path(folder))
                figures = f"{ready.python:8} {ready.packages:8} {ready.megabytes:6}"
                print(f"{extra:12} {figures} {time.monotonic() - begun:4.0f}", flush=True)
            except Wrong as error:
                failed += 1
                print(f"{extra:12} {python:8} WRONG: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
