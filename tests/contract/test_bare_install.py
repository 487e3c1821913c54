"""An installation with few or none of the extras: what is missing is told, with what installs it."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

import airflow_elastic
from airflow_elastic.engines.local import LocalEngine

PACKAGE = Path(airflow_elastic.__file__).parent
ROOT = PACKAGE.parent
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])

#: What an installation without extras brings, and what that needs itself.
BASE = (
    "awscrt",
    "_awscrt",
    "click",
    "croniter",
    "msgspec",
    "pyyaml",
    "rich",
    "tenacity",
    "markdown-it-py",
    "mdurl",
    "pygments",
    "python-dateutil",
    "six",
)


def packages(folder: Path, *more: str) -> Path:
    """A folder of packages that holds airflow-elastic, what it depends on, and these; nothing else can be imported."""
    (folder / "airflow_elastic").symlink_to(PACKAGE)
    for name in ("airflow-elastic", *BASE, *more):
        if name.startswith("_"):
            continue
        found = distribution(name)
        tops = {
            file.parts[0] for file in found.files or () if ".." not in file.parts and not file.is_absolute()
        }
        for top in tops - {"__pycache__"}:
            where = Path(str(found.locate_file(top)))
            if where.exists() and not (folder / top).exists() and not top.endswith(".pth"):
                (folder / top).symlink_to(where)
    return folder


def cli(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, where nothing but these packages and Python's own can be imported."""
    code = f"import sys; sys.path.append({str(site)!r}); from airflow_elastic.cli.main import main; main()"
    command = [sys.executable, "-I", "-S", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=site)


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert done.stderr == "", done.stderr
    return {line["subject"]: line for line in json.loads(done.stdout)["findings"]}


def test_doctor_without_any_extra_says_what_is_missing_and_goes_on(tmp_path: Path) -> None:
    site = packages(tmp_path)
    done = cli(site, "doctor", "--json")
    found = findings(done)
    assert done.returncode == 1, "no engine can be used"
    assert not found["engines"]["ok"]
    well = {subject for subject, line in found.items() if line["ok"]}
    assert well == {"airflow-elastic", "python", "system"}
    assert "pip install 'airflow-elastic[kubernetes]'" in found["engine elasticjob"]["text"]
    assert "pip install 'airflow-elastic[runtime]'" in found["engine local: interpreter"]["text"]
    plain = cli(site, "doctor").stdout.splitlines()
    assert [line for line in plain if line.startswith("✓") and "launcher" in line] == []


def test_doctor_with_the_runtime_alone_finds_the_local_engine_fit(tmp_path: Path) -> None:
    done = cli(packages(tmp_path, "torch", "numpy"), "doctor", "--json")
    found = findings(done)
    assert done.returncode == 0, done.stdout
    assert found["engine local: interpreter"]["ok"]
    assert found["launcher torchrun"]["ok"]
    assert not found["engine job"]["ok"]
    assert not found["engine job"]["needed"]


@pytest.mark.parametrize(
    ("torch", "numpy", "said"),
    [
        (True, False, "numpy (not installed)"),
        (False, True, "torch (2.1.0+cpu is too old: 2.6 or newer is needed)"),
    ],
    ids=["no numpy", "an old torch"],
)
def test_doctor_puts_no_tick_on_what_workers_cannot_use(
    torch: bool, numpy: bool, said: str, tmp_path: Path
) -> None:
    site = packages(tmp_path, "torch", *(("numpy",) if numpy else ()))
    if not torch:
        next(site.glob("torch-*.dist-info")).unlink()
        (site / "torch-2.1.0.dist-info").mkdir()
        (site / "torch-2.1.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.1.0+cpu\n")
    (site / "boto3").mkdir()
    found = findings(cli(site, "doctor", "--json"))
    well = {subject for subject, line in found.items() if line["ok"]}
    runs = {"torch"} if torch else {"numpy"}
    assert well == {"airflow-elastic", "python", "system", *runs}, "and a folder is no package"
    for subject in ("engine local: interpreter", "launcher torchrun"):
        assert said in found[subject]["text"].replace(f" in {sys.executable}", "")
        assert "pip install 'airflow-elastic[runtime]'" in found[subject]["text"]


def test_doctor_tries_whether_processes_can_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may have the call where the kernel has not."""

    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    found = {one.subject: one for one in LocalEngine().doctor()}
    assert not found["local: processes"].ok


def test_a_run_without_torch_is_refused_and_nothing_is_created(tmp_path: Path) -> None:
    site = packages(tmp_path)
    (site / "train.py").write_text("print('hi')")
    before = set(site.iterdir())
    done = cli(site, "run", "--workers", "1", "--", "train.py")
    assert done.returncode == 2
    assert "has no torch (pip install 'airflow-elastic[runtime]')" in done.stderr
    assert {path for path in site.iterdir() if path.name != "__pycache__"} == before


def test_an_engine_that_raises_does_not_end_doctor(tmp_path: Path) -> None:
    site = packages(tmp_path)
    (site / "bad_engine.py").write_text("raise RuntimeError('a driver is too old')")
    about = site / "bad_engine-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-engine\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[airflow_elastic.engines]\nbad = bad_engine:Engine\n")
    assert "a driver is too old" in findings(cli(site, "doctor", "--json"))["engine bad"]["text"]


def test_what_is_to_be_installed_can_be_typed_as_it_stands() -> None:
    pages = [*PACKAGE.rglob("*.py"), ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for path in pages:
        for typed in re.findall(r"pip install [^\n`]+", path.read_text()):
            for name, extras in re.findall(r"(airflow[-_]elastic[^\s\[]*)\[([^\]]*)\]", typed):
                quoted = re.search(
                    rf"'([.\w/]*/)?{re.escape(name)}\[{re.escape(extras)}\]( @ [^']+)?'", typed
                )
                assert quoted, f"{path}: a shell would expand it: {typed}"
                known = {extra for extra in extras.split(",") if not extra.startswith("{")}
                assert known <= EXTRAS, f"{path}: no such extra: {known - EXTRAS}"


def test_the_names_that_are_public_have_types_for_whoever_uses_them(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(
        "from airflow_elastic.spec.run import RunSpec\n"
        "spec = RunSpec(command=('train.py',))\n"
        "reveal_type(spec.workers.count)\n"
        "spec.nothing\n"
    )
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "use.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "Revealed type is" in done.stdout, done.stdout
    assert '"RunSpec" has no attribute "nothing"' in done.stdout
    assert "Found 1 error" in done.stdout
