"""The wheel: what is in it, and that it works in a clean environment, with each extra and on each Python."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import airflow_elastic

ROOT = Path(airflow_elastic.__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
CHECK_WHEEL = ROOT / "scripts" / "check_wheel.py"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, stdout=subprocess.PIPE)
    return next(folder.glob("*.whl"))


def read(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        found = next(member for member in archive.namelist() if member.endswith(f".dist-info/{name}"))
        return archive.read(found).decode()


def metadata(wheel: Path) -> Message:
    return Parser().parsestr(read(wheel, "METADATA"))


def needed(name: str, seen: set[str]) -> set[str]:
    """What a package needs without extras, and what that needs, as far as it is installed here."""
    for line in requires(name) or ():
        requirement = Requirement(line)
        if requirement.name not in seen and (
            requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ):
            seen.add(requirement.name)
            needed(requirement.name, seen)
    return seen


def check_wheel(wheel: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, CHECK_WHEEL, wheel, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = ROOT / "airflow_elastic"
    sources = package / "web" / "ui"  # of the pages, which are built into web/static
    files = [
        path
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.is_relative_to(sources)
    ]
    assert held == {str(path.relative_to(ROOT)) for path in files}
    assert "airflow_elastic/py.typed" in held
    assert "airflow_elastic/web/static/main.js" in held, "the pages are not built: run `make setup`"
    assert read(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text()


def test_the_wheel_says_what_pyproject_says(wheel: Path) -> None:
    said = metadata(wheel)
    assert said["Version"] == airflow_elastic.__version__
    assert set(said.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert said["Requires-Python"] == PROJECT["requires-python"]
    assert PYTHONS == ["3.11", "3.12", "3.13", "3.14"]
    assert read(wheel, "entry_points.txt").count("airflow_elastic.engines.") == len(
        PROJECT["entry-points"]["airflow_elastic.engines"]
    )


def test_the_wheel_works_without_extras(wheel: Path, tmp_path: Path) -> None:
    """From uv's cache alone, as `make setup` has filled it."""
    names = needed("airflow-elastic", set())
    (tmp_path / "packages.txt").write_text("".join(f"{name}=={version(name)}\n" for name in names))
    check_wheel(wheel, "--extra", "none", "--cached", str(tmp_path / "packages.txt"))


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("extra", ["none", *PROJECT["optional-dependencies"]])
def test_the_wheel_works_with_the_extra(wheel: Path, extra: str, python: str) -> None:
    """With the newest packages that fit. The first time on a Python it downloads torch, about 1 GB."""
    find = [sys.executable, "-m", "uv", "python", "find", "--no-project", "--system", python]
    found = subprocess.run(find, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"install Python {python} to run this")
    check_wheel(wheel, "--extra", extra, "--python", found.stdout.strip())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh clone, with what is not committed yet."""
    folder = tmp_path / "check out"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.mark.slow
def test_make_dist_needs_no_environment_and_gives_the_same_wheel(wheel: Path, checkout: Path) -> None:
    done = subprocess.run(["make", "dist"], cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (checkout / ".venv").exists()
    (built,) = (checkout / "dist").glob("*.whl")
    assert built.read_bytes() == wheel.read_bytes()
    assert len(list((checkout / "dist").iterdir())) == 2


@pytest.fixture
def repository(checkout: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a repository that git can clone over HTTP."""
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init"], ["add", "--all"], ["commit", "--message", "all"], ["tag", "v0"]):
        subprocess.run([*git, *words], cwd=checkout, check=True, stdout=subprocess.DEVNULL)
    bare = tmp_path / "airflow-elastic.git"
    subprocess.run(["git", "clone", "--quiet", "--bare", checkout, bare], check=True)
    subprocess.run(["git", "update-server-info"], cwd=bare, check=True)
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/airflow-elastic.git"
        server.shutdown()


@pytest.mark.slow
def test_pip_installs_from_git(repository: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    wanted = f"airflow-elastic[s3] @ git+{repository}@v0"
    subprocess.run([tmp_path / "env/bin/pip", "install", "--quiet", wanted], check=True)
    found = subprocess.run(
        [tmp_path / "env/bin/airflow-elastic", "doctor"], check=False, capture_output=True, text=True
    ).stdout
    assert airflow_elastic.__version__ in found
    assert re.search("^✓ boto3 ", found, re.MULTILINE)
